"""Tests of the replay, its priorities and its stores of observations."""
