"""Hockey in a browser: a page, and a server on this machine that plays one match for each page.

``page.html`` draws the table from 18 numbers and sends keys. ``server.py`` serves it and keeps the time.
``match.py`` plays the games, with the compiled env.
"""

from shoal.hockey.play.server import Server

__all__ = ["Server"]
