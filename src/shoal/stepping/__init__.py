"""Step a block of envs of any kind in one process, by one set of rules for episodes."""
