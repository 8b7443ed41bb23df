"""Adapters: one interface for any env, be it from Gymnasium, PettingZoo or old gym, or a `shoal.Env`."""
