"""Training of hockey agents by configuration files: curricula of phases, as the course's students use them.

    config.py      the file: checked as a whole, then dataclasses
    curriculum.py  which phase, opponents and rewards hold after a number of games
    learners.py    the file's agent as a learner of `shoal.learn`
    records.py     csvs, plots and names
    train.py       `train_run`, `train_single_run`

Importing this package does not import torch; training does.
"""
