"""Settings of the learners, one file each, and presets for known envs."""
