"""No order of steps loses a wake-up, blocks, or gives rows to two at once.

A model of handshake.hpp and of both ends in signals.hpp (core/include/shoal/handshake): methods are named
after the C++ functions, and each yield is one operation on one shared word. `Walk` tries every order of them,
all words in one total order; no sleep has a limit. Then the mutants: each breaks one rule, and must be found
out.
"""

from itertools import pairwise, product
from typing import Any, NamedTuple

import pytest
from tests.processes.block_model import BLOCK_TABLE, CALLED, DONE, HELD

WRAP = 16  # numbers begin again after 15, ...
FIRST = 14  # ... which every run passes
PARENT = -1  # its doorbell, beside those of workers 0, 1, ...
NOT_YET = object()


class Violation(Exception):
    """What must not happen, and the steps that led there."""


def do(step, words, at, value):
    """Do one step to the word at some place; whoever gets NOT_YET has to wait."""
    match step:
        case "load":
            return words[at]
        case "store" | "leave rows":
            words[at] = value
        case "fetch_add":
            words[at] = (words[at] + value) % WRAP
            return words[at]
        case "futex_wait":  # compares and falls asleep at once; who sleeps stands behind the word
            words[at + 1] = words[at] == value
            return words[at + 1]
        case "sleep":
            return NOT_YET if words[at + 1] else None
        case "futex_wake":
            words[at + 1] = False
        case "write":
            if words[at] is not None:
                raise Violation("a ring is overwritten while unread")
            words[at] = value
        case "read":
            if words[at] is None:
                raise Violation("a ring is read before it is written")
            value, words[at] = words[at], None
            return value
        case "get rows":
            if words[at]:
                raise Violation("rows have two owners")
            words[at] = True
        case "await reader":
            return NOT_YET if words[at] > value else None
        case "read message":
            if not words[at]:
                return NOT_YET
            words[at] -= 1
    return None


# -- the model -----------------------------------------------------------------------------------------


class Case(NamedTuple):
    owners: tuple[int, ...]  # the worker of each block
    calls: tuple[int, ...]  # how many to each block
    wait: str = "fifo"  # for those called first, or "ready": for any
    batch: int = 9  # how many; by default, all
    outcomes: tuple[str | None, ...] = (None,) * 4  # of each block: "message", "failed", nothing but rows
    looks: int = 0  # before parking, beside those that must be taken
    room: int = 0  # how many messages a worker can leave unread and go on
    interrupts: int = 0  # how often somebody wakes up for nothing


class Book(NamedTuple):
    """What the parent remembers."""

    calls: tuple[int, ...]  # still to be made, of each block
    seen: tuple[int, ...]  # answers of each worker
    order: tuple[int, ...] = ()  # blocks that have been called, and not taken since
    arrived: tuple[int, ...] = ()  # of these, answered
    unread: tuple[int, ...] = ()  # of these, with a message that is not yet read

    def state(self, block):
        """The state of a block, as `Blocks` would have it if it kept all of them."""
        return DONE if block in self.arrived else CALLED if block in self.order else HELD


NEXT_STATE = {
    state: BLOCK_TABLE[event][state]
    for event, state in zip(("call", "settle", "receive"), (HELD, CALLED, DONE), strict=True)
}


def reached(number, wanted):
    return (number - wanted) % WRAP < WRAP // 2


def raised(numbers, at, by):
    return (*numbers[:at], (numbers[at] + by) % WRAP, *numbers[at + 1 :])


class Handshake:
    """The protocol. A routine returns the next one of its process, with all that it remembers.

    Left out is what makes no difference: the time, the order in which `collect` goes through workers, loads
    whose result nobody uses, and of two looks with nothing between them the second.
    """

    def __init__(self, case):
        self.case, self.owners, self.outcomes = case, case.owners, case.outcomes
        self.workers = range(1 + max(case.owners))
        self.blocks = [[b for b, owner in enumerate(case.owners) if owner == w] for w in self.workers]
        self.entries = self.entries_for(max(map(len, self.blocks)))

    def entries_for(self, blocks):
        return 1 << (blocks - 1).bit_length()

    def words(self):
        words: dict[Any, Any] = {"interrupts": self.case.interrupts}
        for doorbell in (PARENT, *self.workers):
            words |= {("number", doorbell): FIRST, ("sleeps", doorbell): False}
            words |= {("urgent", doorbell): 0, ("parked", doorbell): 0, ("wanted", doorbell): 0}
        for worker in self.workers:
            words |= {("answers", worker): FIRST, ("mail", worker): 0}
            words |= {(ring, worker, at): None for ring in ("call", "answer") for at in range(self.entries)}
        return words | {("rows", block): True for block in range(len(self.owners))}  # the parent's

    def begin(self):
        book = Book(self.case.calls, (FIRST,) * len(self.workers))
        parent = "post", book, tuple(range(len(self.owners)))
        return [parent, *(("await_call", worker, FIRST) for worker in self.workers)]

    # handshake.hpp

    def urgent(self, doorbell):
        # If nobody ever writes that word, looking at it is no step.
        return (yield "load", ("urgent", doorbell)) if doorbell == PARENT and any(self.outcomes) else 0

    def has_rung(self, doorbell, awaited, urgent):
        number = yield "load", ("number", doorbell)
        return reached(number, awaited) or (yield from self.urgent(doorbell)) != urgent

    def spin_until_rung(self, doorbell, awaited, urgent):
        for _ in range(self.case.looks):
            if (yield from self.has_rung(doorbell, awaited, urgent)):
                return True
        return False

    def park_until_rung(self, doorbell, awaited, urgent):
        yield "store", ("wanted", doorbell), awaited
        yield "store", ("parked", doorbell), 1
        number = yield "load", ("number", doorbell)
        if not reached(number, awaited) and (yield from self.urgent(doorbell)) == urgent:
            yield from self.sleep_while(doorbell, number)
        yield "store", ("parked", doorbell), 0

    def sleep_while(self, doorbell, number):
        if (yield "futex_wait", ("number", doorbell), number):
            yield "sleep", ("number", doorbell)

    def ring(self, doorbell, urgent=False):
        if urgent:
            yield "fetch_add", ("urgent", doorbell), 1
        return (yield "fetch_add", ("number", doorbell), 1)

    def wake_if_parked(self, doorbell, number, urgent=False):
        if (yield "load", ("parked", doorbell)) and (
            urgent or reached(number, (yield "load", ("wanted", doorbell)))
        ):
            yield "futex_wake", ("number", doorbell)

    # ParentSignals

    def post(self, book, blocks):
        blocks = tuple(block for block in blocks if book.calls[block])
        for block in blocks:
            yield from self.call(self.owners[block], block, self.calls_so_far(book, self.owners[block]))
            book = book._replace(calls=raised(book.calls, block, -1), order=(*book.order, block))
        for block in blocks:
            yield from self.wake_if_parked(self.owners[block], self.calls_so_far(book, self.owners[block]))
        return ("await_", book) if book.order else None

    def call(self, worker, block, number):
        yield "leave rows", ("rows", block), False
        yield "write", ("call", worker, number % self.entries), block
        yield from self.ring(worker)

    def await_(self, book):
        number = yield "load", ("number", PARENT)
        urgent = yield from self.urgent(PARENT)
        book = yield from self.collect(book)
        return (yield from self.go_on(book, number, urgent))

    def collect(self, book):
        for worker in self.workers:
            number = yield "load", ("answers", worker)
            while book.seen[worker] != number:
                block = yield "read", ("answer", worker, book.seen[worker] % self.entries)
                if block not in self.called(book, worker)[:1]:
                    raise Violation("an answer to a call that is not the next")
                book = self.note(book, worker, block)
        return book

    def go_on(self, book, number, urgent):
        left = self.missing(book)
        if left and not self.must_read_messages(book):
            return "park", book, (number + left) % WRAP, urgent
        for block in book.unread:
            yield "read message", ("mail", self.owners[block])
        return ("await_" if left else "take"), book._replace(unread=())

    def park(self, book, awaited, urgent):
        if not (yield from self.spin_until_rung(PARENT, awaited, urgent)):
            yield from self.park_until_rung(PARENT, awaited, urgent)
        return "await_", book

    def take(self, book):
        blocks = self.wanted(book)
        for block in blocks:
            yield "get rows", ("rows", block)
        order, arrived = (tuple(b for b in some if b not in blocks) for some in (book.order, book.arrived))
        return "post", book._replace(order=order, arrived=arrived), blocks

    # What it knows without a look at shared words.

    def called(self, book, worker):
        return [b for b in book.order if self.owners[b] == worker and b not in book.arrived]

    def calls_so_far(self, book, worker):
        return (book.seen[worker] + len(self.called(book, worker))) % WRAP

    def note(self, book, worker, block):
        seen, arrived = raised(book.seen, worker, 1), (*book.arrived, block)
        unread = (*book.unread, block) if self.outcomes[block] else book.unread
        return book._replace(seen=seen, arrived=arrived, unread=unread)

    def wanted(self, book):
        return (book.arrived if self.case.wait == "ready" else book.order)[: self.case.batch]

    def missing(self, book):
        return len(book.order[: self.case.batch]) - len(set(self.wanted(book)) & set(book.arrived))

    def must_read_messages(self, book):
        return any(self.outcomes[b] == "failed" or self.called(book, self.owners[b]) for b in book.unread)

    # WorkerSignals, and what processes/worker.py does with it

    def await_call(self, worker, taken):
        awaited = worker, (taken + 1) % WRAP, 0
        if not (yield from self.has_rung(*awaited)):
            if not (yield from self.spin_until_rung(*awaited)):
                yield from self.park_until_rung(*awaited)
            return "await_call", worker, taken
        block = yield "read", ("call", worker, taken % self.entries)
        yield "get rows", ("rows", block)
        return "work", worker, (taken + 1) % WRAP, block

    def work(self, worker, taken, block):
        yield "leave rows", ("rows", block), False
        return "answer", worker, taken, block

    def answer(self, worker, taken, block):
        yield "write", ("answer", worker, (taken - 1) % WRAP % self.entries), block
        yield "store", ("answers", worker), taken
        urgent = yield from self.is_urgent(worker, taken, block)
        number = yield from self.ring(PARENT, urgent)
        yield from self.wake_if_parked(PARENT, number, urgent)
        return (yield from self.send_message(worker, taken, block))

    def is_urgent(self, worker, taken, block):
        outcome = self.outcomes[block]
        return outcome == "failed" or (outcome == "message" and (yield "load", ("number", worker)) != taken)

    def send_message(self, worker, taken, block):
        if self.outcomes[block]:
            yield "fetch_add", ("mail", worker), 1
            yield "await reader", ("mail", worker), self.case.room
        # After the last call, nobody sees any more what it does.
        all_calls = sum(self.case.calls[own] for own in self.blocks[worker])
        return None if taken == (FIRST + all_calls) % WRAP else ("await_call", worker, taken)

    def has_reason(self, routine, words):
        """Whether somebody who sleeps in this routine should be up, even if all others stay at work."""
        if routine[0] == "await_call":
            return words["number", routine[1]] != routine[2]
        book = routine[1]
        for worker in self.workers:
            news = (words["answers", worker] - book.seen[worker]) % WRAP
            for block in self.called(book, worker)[:news]:
                book = self.note(book, worker, block)
        return not self.missing(book) or self.must_read_messages(book)


# -- the walk ------------------------------------------------------------------------------------------


class Place:
    """Where a process is: in a routine that has seen so much, before a step. After it: by what it sees."""

    def __init__(self, routine, seen, at, step, word, value=None):
        self.routine, self.seen = routine, seen
        self.step, self.word, self.at, self.value = step, word, at, value
        self.after = {}


class Walk:
    """Through all states that can be reached: the shared words, and the place of each process."""

    def __init__(self, model):
        self.model, self.places = model, {}
        words = model.words()
        self.at = {word: at for at, word in enumerate(words)}
        self.begin = (*words.values(), *(self.place(routine) for routine in model.begin()))
        self.processes = range(len(words), len(self.begin))  # the parent first

    def place(self, routine, seen=()):
        """Found by running the routine again; None if there is nothing left to do."""
        if routine is None:
            return None
        if (routine, seen) not in self.places:
            run = getattr(self.model, routine[0])(*routine[1:])
            try:
                step = run.send(None)
                for result in seen:
                    step = run.send(result)
                self.places[routine, seen] = Place(routine, seen, self.at[step[1]], *step)
            except StopIteration as end:
                self.check_states(routine, end.value)
                self.places[routine, seen] = self.place(end.value)
        return self.places[routine, seen]

    def check_states(self, routine, following):
        """What the parent remembers of a block changes only as the table of `Blocks` says."""
        if following is None or not isinstance(routine[1], Book):
            return
        for block in range(len(self.model.owners)):
            before, after = routine[1].state(block), following[1].state(block)
            if after not in (before, NEXT_STATE[before]):
                raise Violation(f"block {block} was {before.name}, and is {after.name}")

    def move(self, state, process):
        """The state after one step of a process; None if it has to wait."""
        after, place = list(state), state[process]
        result = do(place.step, after, place.at, place.value)
        if result is NOT_YET:
            return None
        if result not in place.after:
            place.after[result] = self.place(place.routine, (*place.seen, result))
        after[process] = place.after[result]
        return tuple(after)

    def moves(self, state):
        ends = lasts = True
        for process in self.processes:
            place = state[process]
            if place and (after := self.move(state, process)):
                ends, lasts = False, lasts and place.routine[0] == "work" and place.step == "leave rows"
                yield after
            elif place and place.step == "sleep" and state[0]:
                after = [state[0] - 1, *state[1:]]
                after[place.at + 1] = False
                yield tuple(after)
        if lasts:
            self.check(state, ends)

    def check(self, state, ends):
        """A state that lasts until some worker has done its work; or for ever, since nobody can move."""
        words = dict(zip(self.at, state, strict=False))
        places = [state[process] for process in self.processes if state[process]]
        for place in places:
            if place.step == "sleep" and self.model.has_reason(place.routine, words):
                raise Violation(f"somebody sleeps for ever: {place.routine}")
        if ends and places:
            raise Violation("nobody can go on")

    def go(self):
        """Depth first, so that a circle is seen too: somebody who waits and never sleeps. Counts states."""
        on_path = {self.begin: True}
        path = [(self.begin, self.moves(self.begin))]
        try:
            while path:
                for after in path[-1][1]:
                    if on_path.get(after):
                        raise Violation("somebody goes round in a circle")
                    if after not in on_path:
                        on_path[after] = True
                        path.append((after, self.moves(after)))
                        break
                else:
                    on_path[path.pop()[0]] = False
        except Violation as violation:
            steps = (self.difference(*states) for states in pairwise(state for state, _ in path))
            raise Violation("\n".join([str(violation), *steps])) from None
        return len(on_path)

    def difference(self, before, after):
        for who, process in enumerate(self.processes):
            if before[process] is not after[process]:
                place = before[process]
                name = f"worker {who - 1}" if who else "parent"
                return f"{name}, {place.routine[0]}: {place.step} {place.word} {place.value}"
        return "somebody wakes up for nothing"


# -- tests ---------------------------------------------------------------------------------------------

BLOCKS, WORKERS, BOTH = ((0, 0), (2, 2)), ((0, 1), (2, 1)), ((0, 0, 1, 1), (1, 1, 1, 1))
ALL, FIFO, READY = ("fifo", 9), ("fifo", 1), ("ready", 1)
PLAIN, MESSAGE, MESSAGES, FAILED = (None,) * 4, ("message", None, None), ("message",) * 2, (None, "failed")
CASES = [
    *(Case(*BLOCKS, *wait, PLAIN, looks) for wait, looks in product((ALL, READY), (0, 1))),
    *(Case(*BLOCKS, *READY, *rest) for rest in product((MESSAGE, MESSAGES, FAILED), (0, 1), (0, 1))),
    *(Case(*BLOCKS, *ALL, outcomes) for outcomes in (MESSAGE, MESSAGES, FAILED)),
    *(Case(*WORKERS, *wait) for wait in (ALL, FIFO, READY)),
    Case(*WORKERS, *READY, FAILED),
    Case((0, 1), (1, 1), looks=1),
    Case((0, 1), (1, 1), interrupts=1),
    Case((0, 0, 1), (1, 1, 1), "ready", 2, MESSAGE),
    Case((0, 0, 0), (2, 2, 2)),
    Case(*BOTH),
]


def name(case):
    default = Case._field_defaults
    return " ".join(f"{key}={value}" for key, value in case._asdict().items() if value != default.get(key))


@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_order_of_steps_ends_well(case):
    assert Walk(Handshake(case)).go() > 1000


MUTANTS = []


def caught(match, *case, **more):
    def add(mutant):
        model = mutant(Case(*case, **more))
        MUTANTS.append(pytest.param(model, match, id=f"{mutant.__name__} {name(model.case)}"))
        return mutant

    return add


@caught("was CALLED, and is HELD", *BLOCKS)
class TakesOneBlockTooMany(Handshake):
    def missing(self, book):
        return max(0, super().missing(book) - 1)


@caught("sleeps for ever", *BLOCKS)
class LooksBeforeItParks(Handshake):
    # Harmless if the kernel compared the number that was looked at: then that would be the second look.
    def park_until_rung(self, doorbell, awaited, urgent):
        rung = yield from self.has_rung(doorbell, awaited, urgent)
        yield "store", ("wanted", doorbell), awaited
        yield "store", ("parked", doorbell), 1
        if not rung:
            yield from self.sleep_while(doorbell, (yield "load", ("number", doorbell)))
        yield "store", ("parked", doorbell), 0


@caught("sleeps for ever", *BLOCKS)
class SleepsWithoutComparing(Handshake):
    def sleep_while(self, doorbell, number):
        yield "store", ("sleeps", doorbell), True
        yield "sleep", ("number", doorbell)


@caught("sleeps for ever", *BLOCKS)
class LooksForParkersBeforeItRings(Handshake):
    def ring(self, doorbell, urgent=False):
        parks = yield "load", ("parked", doorbell)
        number = yield from super().ring(doorbell, urgent)
        if parks:
            yield "futex_wake", ("number", doorbell)
        return number

    def wake_if_parked(self, doorbell, number, urgent=False):
        yield from ()


@caught("sleeps for ever", *BLOCKS)
class WakesAtTheVeryNumber(Handshake):
    # Two calls to one worker ring before it is woken, and it waits for the first.
    def wake_if_parked(self, doorbell, number, urgent=False):
        if (yield "load", ("parked", doorbell)) and number == (yield "load", ("wanted", doorbell)):
            yield "futex_wake", ("number", doorbell)


@caught("sleeps for ever", *WORKERS)
class RingsInTwoSteps(Handshake):
    def ring(self, doorbell, urgent=False):
        number = ((yield "load", ("number", doorbell)) + 1) % WRAP
        yield "store", ("number", doorbell), number
        return number


@caught("sleeps for ever", *WORKERS)
@caught("sleeps for ever", *WORKERS, *READY)
class LooksAtTheDoorbellAfterCollecting(Handshake):
    # As it once was: an answer that came between the two looks was slept over.
    def await_(self, book):
        book = yield from self.collect(book)
        return (yield from self.go_on(book, (yield "load", ("number", PARENT)), 0))


@caught("sleeps for ever", *BLOCKS, outcomes=MESSAGE)
class NothingIsUrgent(Handshake):
    def is_urgent(self, worker, taken, block):
        yield from ()
        return False


@caught("sleeps for ever", *BLOCKS, outcomes=MESSAGE)
class RingsBeforeItIsUrgent(Handshake):
    def ring(self, doorbell, urgent=False):
        number = yield from super().ring(doorbell)
        if urgent:
            yield "fetch_add", ("urgent", doorbell), 1
        return number


@caught("sleeps for ever", *BLOCKS, outcomes=MESSAGE)
class ParksWithoutALookAtUrgent(Handshake):
    def park_until_rung(self, doorbell, awaited, urgent):
        yield "store", ("wanted", doorbell), awaited
        yield "store", ("parked", doorbell), 1
        number = yield "load", ("number", doorbell)
        if not reached(number, awaited):
            yield from self.sleep_while(doorbell, number)
        yield "store", ("parked", doorbell), 0


@caught("sleeps for ever", *BLOCKS, outcomes=MESSAGE)
class LooksForCallsBeforeItAnswers(Handshake):
    # A processor does so by itself, unless the store and the load are both in the one total order.
    def answer(self, worker, taken, block):
        urgent = yield from self.is_urgent(worker, taken, block)
        yield "write", ("answer", worker, (taken - 1) % WRAP % self.entries), block
        yield "store", ("answers", worker), taken
        number = yield from self.ring(PARENT, urgent)
        yield from self.wake_if_parked(PARENT, number, urgent)
        return (yield from self.send_message(worker, taken, block))


@caught("nobody can go on", *BLOCKS, outcomes=MESSAGE)
class SendsBeforeItAnswers(Handshake):
    def work(self, worker, taken, block):
        yield from self.send_message(worker, taken, block)
        return (yield from super().work(worker, taken, block))


@caught("goes round in a circle", *WORKERS, outcomes=FAILED)
class ForgetsWhatItHeard(Handshake):
    def go_on(self, book, number, urgent):
        return (yield from super().go_on(book, number, 0))


@caught("two owners", *BLOCKS)
class AnswersBeforeItHasFinished(Handshake):
    def work(self, worker, taken, block):
        following = yield from self.answer(worker, taken, block)
        yield "leave rows", ("rows", block), False
        return following


@caught("two owners", *BLOCKS)
class CallsBeforeItHasFinished(Handshake):
    def call(self, worker, block, number):
        yield "write", ("call", worker, number % self.entries), block
        yield from self.ring(worker)
        yield "leave rows", ("rows", block), False


@caught("read before it is written", *BLOCKS)
class RingsBeforeItHasWritten(Handshake):
    def call(self, worker, block, number):
        yield "leave rows", ("rows", block), False
        yield from self.ring(worker)
        yield "write", ("call", worker, number % self.entries), block


@caught("not the next", *BLOCKS)
class AnswersTwice(Handshake):
    def answer(self, worker, taken, block):
        yield from super().answer(worker, taken, block)
        return (yield from super().answer(worker, (taken + 1) % WRAP, block))


@caught("overwritten while unread", (0, 0, 0), (2, 2, 2))
class AsManyEntriesAsBlocks(Handshake):
    # Three do not divide the numbers: where these begin again, two that follow each other share a place.
    def entries_for(self, blocks):
        return blocks


@pytest.mark.parametrize(("mutant", "match"), MUTANTS)
def test_a_broken_rule_is_found_out(mutant, match):
    with pytest.raises(Violation, match=match):
        Walk(mutant).go()
