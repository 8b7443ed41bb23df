"""A block of envs, stepped in one process: the rules of episodes, whatever kind of env it is."""
