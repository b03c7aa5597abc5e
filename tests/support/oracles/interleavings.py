"""Every order in which executors, cleaners and the passing of time can act on one plan.

The leader's decisions and the fold are the real ones; executors and cleaners are small programs
whose every step is one append or one access to the store. Whoever stops in the middle of its
program has crashed, and whoever goes on after its lease has expired is a zombie: both are among the
orders. States that differ only in the numbers of their entries are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from maar.metastore.decide import rollbacks
from maar.metastore.fold.plans import leftovers
from maar.metastore.records.entries import (
    TermStarted,
)
from maar.metastore.state.state import MetaState
from maar.model.ids import FencingToken
from maar.model.plan import ROLLBACK, Account, PlanResult, PlanState
from maar.model.policy import Policy
from maar.model.time import LeaseTime
from maar.ports.plans.board import (
    Answer,
)
from maar.services.clean.rules import CLEAN
from support.metastore.fold import result
from support.oracles.interleaved_log import (
    JUMP_NS,
    POLICY,
    Broken,
    Known,
    Log,
    Pid,
    Planted,
    Rank,
    Undo,
)

PLANNER = "planner"  # of compaction
FAR = 10  # jumps: every lease and every delay is over
SWEPT = 100  # jumps: no task can write any more


class Thing(NamedTuple):
    """An object in the store, of one attempt of the plan."""

    what: str  # intent, object
    token: Rank
    late: bool = False  # written when its rollback was under way or over: the last sweep finds it


class Actor(NamedTuple):
    name: str
    at: str = "ask"
    token: Rank = -1
    plan: Pid = (-1, 0)
    todo: tuple[Pid, ...] = ()  # rollbacks that a cleaner has still to execute
    undo: Undo | None = None
    keys: tuple[Rank, ...] = ()  # attempts whose object it is about to delete
    confirmed: int = -1  # at which jump the deletes were confirmed

    @property
    def cleans(self) -> bool:
        return self.name.startswith("cleaner")


class Spot(NamedTuple):
    """A state of the whole: what the log says, the time, the store, where everybody is."""

    fold: int
    time: int
    store: frozenset[Thing]
    actors: tuple[Actor, ...]
    newest: Rank = -1  # token of the plan's last grant
    done: Rank = -1  # token under which the plan was completed
    begun: int = 0  # attempts that were told to be starting
    terms: int = 0  # leaders that have begun since
    lost: int = 0  # answers that did not arrive


class Faults(NamedTuple):
    """How much goes wrong, beside crashes, which are always among the orders."""

    jumps: int  # of time, each of which ends all leases that are not renewed
    leaders: int = 0  # that are killed
    answers: int = 0  # that are lost


NOTHING = Account(0, 0, 0)
UNDONE = PlanResult(ROLLBACK, (), NOTHING)
CLEANED = PlanResult(CLEAN, (), NOTHING)


class World:
    """The programs, and what is promised of every state that they can bring about."""

    def __init__(
        self,
        *,
        removable: bool,
        planted: Planted = Planted(),  # noqa: B008 - it is frozen
        policy: Policy = POLICY,
    ) -> None:
        self.log = Log(removable, policy, planted)
        self.removable = removable
        self.planted = planted
        self.came = sum(meta.profiles for meta in self.log.inputs)
        self._inputs_live: dict[int, bool] = {}  # by state of the fold
        self._made: dict[FencingToken, PlanResult] = {}
        self._settled: set[tuple[int, frozenset[Thing], Rank]] = set()

    # ── what things are called ──

    def result_of(self, known: Known, token: Rank) -> PlanResult:
        held = known.token(token)
        if held not in self._made:
            self._made[held] = result(self.log.target, held, self.log.inputs)
        return self._made[held]

    def key(self, known: Known, token: Rank) -> str:
        """One object stands for all of an attempt."""
        return self.result_of(known, token).outputs[0].files[0].locations[0].key

    def knowledge(self, spot: Spot) -> Known:
        return self.log.states[spot.fold]

    # ── the steps that may come next ──

    def steps(self, spot: Spot, faults: Faults) -> Iterator[Spot]:
        if spot.time < faults.jumps:
            yield spot._replace(time=spot.time + 1)
        if spot.terms < faults.leaders:
            yield self.next_leader(spot)
        for number, actor in enumerate(spot.actors):
            if actor.at != "done":
                for after, moved in self.moves(spot, actor):
                    actors = (*spot.actors[:number], moved, *spot.actors[number + 1 :])
                    yield after._replace(actors=actors)
                    if after.fold != spot.fold and spot.lost < faults.answers:
                        yield after._replace(lost=spot.lost + 1)  # it will ask again

    def next_leader(self, spot: Spot) -> Spot:
        """The leader is killed, and another one begins with what the log says."""
        entry = TermStarted(2 + spot.terms, "another")
        fold, _ = self.log.do(
            *(spot.fold, spot.time, "term", spot.terms), how=lambda turn: turn.put([entry])
        )
        return spot._replace(fold=fold, terms=spot.terms + 1)

    def moves(self, spot: Spot, actor: Actor) -> Iterator[tuple[Spot, Actor]]:
        if actor.at == "report":  # it may also break at the very end
            yield self.fails(spot, actor)
        move = getattr(self, f"do_{actor.at}")
        yield move(spot, actor)

    def do_ask(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        if actor.cleans:
            return self.begins_cleaning(spot, actor)
        if actor.name == PLANNER:
            return self.takes_what_is_held(spot, actor)
        target = self.log.target
        fold, (answer, token, undone) = self.log.do(
            *(spot.fold, spot.time, "execute", target, actor.name),
            how=lambda turn: turn.execute(target, actor.name),
        )
        if answer != Answer.GRANTED:
            return spot._replace(fold=fold), actor._replace(at="done")
        if self.removable and spot.begun:
            raise Broken("a removable plan that had started was granted again")
        if spot.done >= 0:
            raise Broken("a completed plan was granted")
        undo = undone[0] if undone else None
        moved = actor._replace(at="look" if undo else "start", token=token, undo=undo)
        return spot._replace(fold=fold, newest=token), moved

    def takes_what_is_held(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        """Compaction needs the inputs."""
        fold, _ = self.log.do(
            *(spot.fold, spot.time, "held_too_long"),
            how=lambda turn: turn.put(rollbacks.held_too_long(turn.state, now=turn.now)),
        )
        return spot._replace(fold=fold), actor._replace(at="done")

    def begins_cleaning(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        fold, (answer, token, plan) = self.log.do(
            *(spot.fold, spot.time, "clean", actor.name),
            how=lambda turn: turn.clean(actor.name),
        )
        at = "survey" if answer == Answer.GRANTED else "done"
        return spot._replace(fold=fold), actor._replace(at=at, token=token, plan=plan)

    def do_survey(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        if not self.planted.fences:
            return spot, self.takes_what_it_sees(spot, actor)
        known = self.knowledge(spot)
        plan, token = known.plan(actor.plan), known.token(actor.token)
        fold, pending = self.log.do(
            *(spot.fold, spot.time, "step", plan, token),
            how=lambda turn: turn.step(plan, token),
        )
        after = spot._replace(fold=fold)
        if pending is None:
            return after, actor._replace(at="done")
        return after, self.goes_on(actor._replace(todo=pending))

    def takes_what_it_sees(self, spot: Spot, actor: Actor) -> Actor:
        """Planted: what nobody has listed is deleted, fenced or not."""
        keys = tuple(t.token for t in spot.store if t.what == "object" and t.token != spot.done)
        at = "delete" if keys else "done"
        return actor._replace(at=at, keys=keys, confirmed=spot.time)

    def goes_on(self, actor: Actor) -> Actor:
        return actor._replace(at="take" if actor.todo else "end", undo=None, keys=())

    def do_take(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        plan = self.knowledge(spot).plan(actor.todo[0])
        fold, (answer, _, undone) = self.log.do(
            *(spot.fold, spot.time, "execute", plan, actor.name),
            how=lambda turn: turn.execute(plan, actor.name),
        )
        after, actor = spot._replace(fold=fold), actor._replace(todo=actor.todo[1:])
        if answer != Answer.GRANTED:
            return after, self.goes_on(actor)
        return after, actor._replace(at="look", undo=undone[0])

    def do_look(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        assert actor.undo is not None
        there = {(thing.what, thing.token) for thing in spot.store}
        tokens = {thing.token for thing in spot.store} if self.planted.greedy else actor.undo.tokens
        keys = tuple(
            token
            for token in sorted(tokens)
            if self.planted.looks and {("intent", token), ("object", token)} <= there
        )
        return spot, actor._replace(at="confirm" if keys else "undone", keys=keys)

    def do_confirm(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        assert actor.undo is not None
        known = self.knowledge(spot)
        plan, token = known.plan(actor.undo.plan), known.token(actor.undo.token)
        asked = {self.key(known, rank): rank for rank in actor.keys}
        fold, allowed = self.log.do(
            *(spot.fold, spot.time, "confirm", plan, token, actor.keys),
            how=lambda turn: turn.confirm(plan, token, tuple(asked)),
        )
        after = spot._replace(fold=fold)
        if allowed is None:
            return after, self.goes_on(actor) if actor.cleans else actor._replace(at="fail")
        keys = tuple(rank for key, rank in asked.items() if key in allowed)
        at = "delete" if keys else "undone"
        return after, actor._replace(at=at, keys=keys, confirmed=spot.time)

    def do_delete(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        if actor.confirmed != spot.time and actor.undo is not None:
            return self.do_confirm(spot, actor)  # more than a second has passed
        token, keys = actor.keys[-1], actor.keys[:-1]
        self.check_delete(spot, token)
        store = frozenset(t for t in spot.store if (t.what, t.token) != ("object", token))
        at = "delete" if keys else "undone" if actor.undo else "done"
        return spot._replace(store=store), actor._replace(at=at, keys=keys)

    def do_undone(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        assert actor.undo is not None
        known = self.knowledge(spot)
        plan, token = known.plan(actor.undo.plan), known.token(actor.undo.token)
        fold, _ = self.log.do(
            *(spot.fold, spot.time, "report", plan, token),
            how=lambda turn: turn.report(plan, token, UNDONE),
        )
        after = spot._replace(fold=fold)
        if actor.cleans:
            return after, self.goes_on(actor)
        return after, actor._replace(at="start", undo=None, keys=())

    def do_start(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        if not self.planted.announces:
            return spot, actor._replace(at="intent")
        token = self.knowledge(spot).token(actor.token)
        fold, started = self.log.do(
            *(spot.fold, spot.time, "start", token),
            how=lambda turn: turn.start(self.log.target, token),
        )
        after = spot._replace(fold=fold, begun=spot.begun + started)
        return after, actor._replace(at="intent" if started else "done")

    def do_intent(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        store = spot.store | {Thing("intent", actor.token)}
        return spot._replace(store=store), actor._replace(at="output")

    def do_output(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        late = self.is_undone(self.knowledge(spot), actor.token)
        store = spot.store | {Thing("object", actor.token, late)}
        return spot._replace(store=store), actor._replace(at="report")

    def is_undone(self, known: Known, token: Rank) -> bool:
        """Whether the rollback of an attempt is under way, or over."""
        attempts = {key.token.index: end for key, end in known.state.leftovers.items()}
        ended = attempts.get(known.indexes[token])
        pending = known.state.plans.rollback_of(self.log.target)
        named = pending is not None and known.token(token) in pending.tokens
        under_way = named and pending is not None and pending.lease is not None
        return ended is not None and (not ended.dead or under_way)

    def do_report(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        known = self.knowledge(spot)
        token, made = known.token(actor.token), self.result_of(known, actor.token)
        fold, completed = self.log.do(
            *(spot.fold, spot.time, "complete", token),
            how=lambda turn: turn.report(self.log.target, token, made),
        )
        after, moved = spot._replace(fold=fold), actor._replace(at="done")
        if not completed:
            return after, moved
        if spot.done not in (-1, actor.token):
            raise Broken("the plan was completed twice")
        if actor.token != spot.newest:
            raise Broken("a token completed that is not the newest")
        return after._replace(done=actor.token), moved

    def fails(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        token = self.knowledge(spot).token(actor.token)
        fold, _ = self.log.do(
            *(spot.fold, spot.time, "fail", token),
            how=lambda turn: turn.report(self.log.target, token, None),
        )
        return spot._replace(fold=fold), actor._replace(at="done")

    do_fail = fails

    def do_end(self, spot: Spot, actor: Actor) -> tuple[Spot, Actor]:
        known = self.knowledge(spot)
        plan, token = known.plan(actor.plan), known.token(actor.token)
        fold, _ = self.log.do(
            *(spot.fold, spot.time, "report", plan, token),
            how=lambda turn: turn.report(plan, token, CLEANED),
        )
        return spot._replace(fold=fold), actor._replace(at="done")

    # ── what is promised ──

    def check(self, spot: Spot) -> None:
        """Of every state: profiles are there once, and so is what the index lists."""
        if self.inputs_live(spot.fold) != (spot.done < 0):
            raise Broken("inputs and outputs were not exchanged in one step")
        if spot.done >= 0 and not self.is_there(spot, spot.done):
            raise Broken("an object that the index lists was deleted")
        self.settle(spot)

    def inputs_live(self, fold: int) -> bool:
        if fold not in self._inputs_live:
            blocks = self.log.states[fold].state.blocks
            if sum(blocks.get(block).profiles for block in blocks.where) != self.came:
                raise Broken("profiles are missing, or are there twice")
            inputs = [meta.id in blocks for meta in self.log.inputs]
            if all(inputs) != any(inputs):
                raise Broken("some inputs are gone and others are not")
            self._inputs_live[fold] = all(inputs)
        return self._inputs_live[fold]

    def is_there(self, spot: Spot, token: Rank) -> bool:
        return any((thing.what, thing.token) == ("object", token) for thing in spot.store)

    def check_delete(self, spot: Spot, token: Rank) -> None:
        """Neither what is listed nor what its writer could still complete is deleted."""
        if token == spot.done:
            raise Broken("an object that the index lists was deleted")
        known = self.knowledge(spot)
        held, made = known.token(token), self.result_of(known, token)
        _, completed = self.log.do(
            *(spot.fold, spot.time, "complete", held),
            how=lambda turn: turn.report(self.log.target, held, made),
        )
        if completed:
            raise Broken("an object was deleted that its writer could still have completed")

    def settle(self, spot: Spot) -> None:
        """Everybody dies here. Then two cleanings come (a plan has one rollback at a time, so that
        an attempt may have to wait for the rollback of an earlier one), then whoever finishes the
        plan, and then the last sweep: nothing but what the index lists is left.
        """
        if (spot.fold, spot.store, spot.done) in self._settled:
            return
        self._settled.add((spot.fold, spot.store, spot.done))
        after = spot._replace(time=FAR)
        for _ in range(2):
            after = self.runs_alone(after, Actor("cleaner of the next day"))
        left = {t for t in after.store if t.what == "object" and t.token != after.done}
        if any(not thing.late for thing in left):
            raise Broken("cleanings have left what dead attempts wrote")
        if after.done < 0 and not self.removable:
            after = self.runs_alone(after, Actor("executor of the next day"))
            if after.done < 0:
                raise Broken("nobody can finish the plan any more")
        if after.done < 0:
            self.check_removed(self.knowledge(after).state)
        self.sweep_last(after)

    def runs_alone(self, spot: Spot, actor: Actor) -> Spot:
        while actor.at != "done":
            *_, (spot, actor) = self.moves(spot, actor)
        return spot

    def check_removed(self, state: MetaState) -> None:
        ended = state.finished.get(self.log.target)
        if ended is None or ended.state is not PlanState.ROLLED_BACK:
            raise Broken("a removable plan that nobody finishes is still there after a cleaning")
        owners = {state.owners.get(meta.id) for meta in self.log.inputs}
        taken = ended.note == "compaction needs what it holds"
        if (None in owners) == taken or len(owners) != 1 or self.log.target in owners:
            raise Broken("what the planner took has no owner, or what it did not take has one")
        if any(meta.id not in state.queue.places for meta in self.log.inputs):
            raise Broken("the inputs of a plan that was rolled back do not wait any more")

    def sweep_last(self, spot: Spot) -> None:
        known = self.knowledge(spot)
        state, now = known.state, LeaseTime(SWEPT * JUMP_NS)
        due = leftovers.due(
            state.leftovers, now=now, leftovers_ns=POLICY.leftovers_ns, resting=(), limit=99
        )
        swept = {known.rank(key.token.index) for key in due}
        keys = {self.key(known, token): token for token in swept}
        block = {key: self.result_of(known, token).outputs[0].id for key, token in keys.items()}
        unlisted = {keys[key] for key in self.planted.unlisted(state, block)}
        gone = {("object", t) for t in unlisted} | {("intent", t) for t in swept}
        left = {(t.what, t.token) for t in spot.store} - gone
        if left - {("object", spot.done)}:
            raise Broken("the last sweep has left something behind")
        if spot.done >= 0 and ("object", spot.done) not in left:
            raise Broken("the last sweep has deleted an object that the index lists")


class Visited(NamedTuple):
    states: int
    folds: int  # states of the fold that they, and what would follow if all died there, have
    ends: int  # states in which nobody, or only one who has crashed, is left


def visit_all(world: World, actors: Sequence[Actor], faults: Faults) -> Visited:
    """Every state that any order of steps leads to, each once; Broken at the first bad one."""
    first = Spot(0, 0, frozenset(), tuple(actors))
    came: dict[Spot, Spot | None] = {first: None}
    ends, waiting = 0, [first]
    world.check(first)
    while waiting:
        spot = waiting.pop()
        ends += sum(actor.at != "done" for actor in spot.actors) <= 1
        try:
            for after in world.steps(spot, faults):
                if after not in came:
                    came[after] = spot
                    waiting.append(after)
                    world.check(after)
        except Broken as broken:
            broken.add_note(_way(waiting[-1] if waiting else spot, came))
            raise
    return Visited(len(came), len(world.log.states), ends)


def _way(spot: Spot | None, came: Mapping[Spot, Spot | None]) -> str:
    """How a state was reached, one step a line."""
    lines: list[str] = []
    while spot is not None:
        places = ", ".join(f"{actor.name} {actor.at}" for actor in spot.actors)
        lines.append(f"time {spot.time}: {places}; {sorted(spot.store)}")
        spot = came[spot]
    return "\n".join(reversed(lines))
