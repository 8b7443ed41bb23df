"""The test kit: the contract of envs and vecs as checks that anybody can run, and envs made to fail.

check_env(MyEnv)                           does my env keep its promises?
check_vector_env(shoal.Serial)             does this backend keep the whole contract?
"""

from shoal.testing.check_env import check_env
from shoal.testing.check_vector_env import check_vector_env
from shoal.testing.contract import ContractViolation
from shoal.testing.envs import (
    CrashEnv,
    HangEnv,
    SampleEnv,
    SentinelAgent,
    SentinelEnv,
    SentinelRows,
    SlowEnv,
)
from shoal.testing.spaces import OBJECT_SPACES, SPACES, UNSIZED_SPACES, random_space

__all__ = [
    "OBJECT_SPACES",
    "SPACES",
    "UNSIZED_SPACES",
    "ContractViolation",
    "CrashEnv",
    "HangEnv",
    "SampleEnv",
    "SentinelAgent",
    "SentinelEnv",
    "SentinelRows",
    "SlowEnv",
    "check_env",
    "check_vector_env",
    "random_space",
]
