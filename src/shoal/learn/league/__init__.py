"""Leagues: a learner plays against its past selves and other policies, in any game of two players.

OnePlayer     a vec of two players as a vec of one; policies play the other side, one call for each
Archive       policies on disk, with ratings
Matchmaking   which opponent a game gets
"""

from shoal.learn.league.archive import Archive, Member
from shoal.learn.league.matchmaking import Matchmaking
from shoal.learn.league.one_player import OnePlayer

__all__ = ["Archive", "Matchmaking", "Member", "OnePlayer"]
