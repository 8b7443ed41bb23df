"""Any env behind one interface: Gymnasium, PettingZoo, old gym, and `shoal.Env` with its rows in place."""
