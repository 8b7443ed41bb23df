"""The test kit: checks for the contract of envs and vecs, and envs that fail on purpose.

check_env(MyEnv)                           check that an env keeps its contract
check_vector_env(shoal.Serial)             check that a backend keeps the whole contract of a vec
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
