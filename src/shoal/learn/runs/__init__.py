"""Runs on disk: a folder for each run, safe to open and durable."""
