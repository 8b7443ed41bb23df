"""One step of the physics: what Box2D 2.3 does with two rackets, a puck and the table.

    find_contacts --> velocities change (rules.py) --> advance: contacts solved, positions, overlaps undone,
                                                       fast bodies stopped at walls for the rest of the step

All functions are compiled. They work on a record `w` (`WORKSPACE`), which holds the bodies and the contact
points of one step. A body is a row: x, y of its centre of mass, angle, velocity x, y, angular velocity.

A contact point lies between a reference body `a` and another body `b`. The reference body has a plane (a
normal and a point of the plane, in its own frame), the other body has a point (in its own frame). The normal
points from `a` to `b`.

Left out: sleeping bodies and impulses remembered from the last step, which change nothing that can be
measured; and contacts between the two rackets. The centre zone keeps these apart, but for a few steps of the
training modes, in which player two may begin near the middle.
"""

# Compiled functions have no annotations.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from shoal.hockey.table import (
    BODIES,
    BOXES,
    COUNTS,
    FRICTION_PUCK_WALL,
    FRICTION_RACKET,
    GOALS,
    HALF_HEIGHT,
    HALF_WIDTH,
    INVERSE_INERTIA,
    INVERSE_MASS,
    NORMALS,
    POLYGONS,
    PUCK,
    RACKET_CORNERS,
    RACKET_RADIUS,
    REACH,
    RESTITUTION_PUCK,
    SKIN,
    STATIC,
    TIME_STEP,
    VERTICES,
    WALLS,
)
from shoal.native.math import cos, sin

X, Y, ANGLE, VX, VY, SPIN = range(6)  # the columns of a body

MOST_POINTS = 24
VELOCITY_SWEEPS, POSITION_SWEEPS = 40, 60
CONVERGED = 1e-8  # the change of an impulse after which a solution is exact enough
SLOP = 0.005  # the overlap that Box2D leaves
SLOWEST_BOUNCE = 1.0  # metres per second: a slower puck does not bounce
RACKET_REACH = RACKET_RADIUS + 2 * SKIN
# A fast body is stopped where its core (the puck's centre, the racket without skin) is this far from a wall.
PUCK_STOP, RACKET_STOP = REACH - 3 * SLOP, SLOP
TOLERANCE = 0.25 * SLOP
MOST_STOPS = 8
FARTHEST, LARGEST_TURN = 2.0, math.pi / 2  # that a body moves and turns in a step
NEVER = 2.0  # more than the whole way
LAST_STOP = 1.0 - 1.2e-6  # of the way: stops at the very end of a step are ignored

_reals = (
    *("normal_x", "normal_y", "arm_ax", "arm_ay", "arm_bx", "arm_by", "mass_n", "mass_t", "bias", "friction"),
    *("impulse_n", "impulse_t", "plane_nx", "plane_ny", "plane_x", "plane_y", "point_x", "point_y", "skins"),
)
WORKSPACE = np.dtype(
    [
        ("bodies", np.float64, (BODIES, 6)),
        ("rotations", np.float64, (BODIES, 2)),  # cosine and sine of each body's angle
        ("corners", np.float64, (RACKET_CORNERS + 1, 2)),  # the vertices of one racket on the table
        ("faces", np.float64, (RACKET_CORNERS, 2)),  # the normals of its edges
        ("way", np.float64, (2, 3)),  # x, y, angle of a racket before and after it has moved
        ("points", np.int64),  # the number of contact points
        ("a", np.int64, MOST_POINTS),
        ("b", np.int64, MOST_POINTS),
        *((name, np.float64, MOST_POINTS) for name in _reals),
        ("actions", np.float64, (2, 4)),  # of both players; see rules.py
        # For each body: the change of velocity x, y and spin, then the damping of velocity and of spin.
        ("pushes", np.float64, (3, 5)),
        ("touches", np.bool_, 2),  # whether the puck touches each racket
    ]
)


# -- contacts ------------------------------------------------------------------------------------------


def _turn(w, body):
    """Compute the rotation of a body after its angle has changed."""
    angle = w.bodies[body, ANGLE]
    w.rotations[body, 0] = cos(angle)
    w.rotations[body, 1] = sin(angle)


def _add_point(w, a, b, normal_x, normal_y, plane_x, plane_y, point_x, point_y, skins, friction):
    i = w.points
    if i == MOST_POINTS:
        return
    w.points = i + 1
    w.a[i], w.b[i] = a, b
    w.plane_nx[i], w.plane_ny[i], w.plane_x[i], w.plane_y[i] = normal_x, normal_y, plane_x, plane_y
    w.point_x[i], w.point_y[i] = point_x, point_y
    w.skins[i], w.friction[i] = skins, friction


def _nearest(polygon, x, y):
    """Find the part of a polygon that is nearest to a point in the polygon's frame.

    Return the distance, which is negative inside; the direction from the polygon to the point; and a vertex,
    or the middle of an edge.
    """
    best, farthest = 0, -1e9
    for i in range(COUNTS[polygon]):
        dx, dy = x - VERTICES[polygon, i, 0], y - VERTICES[polygon, i, 1]
        apart = NORMALS[polygon, i, 0] * dx + NORMALS[polygon, i, 1] * dy
        if apart > farthest:
            best, farthest = i, apart
    ax, ay = VERTICES[polygon, best, 0], VERTICES[polygon, best, 1]
    bx, by = VERTICES[polygon, best + 1, 0], VERTICES[polygon, best + 1, 1]
    if farthest > 1.2e-7:
        before_a = (x - ax) * (bx - ax) + (y - ay) * (by - ay) <= 0.0
        beyond_b = (x - bx) * (ax - bx) + (y - by) * (ay - by) <= 0.0
        if before_a or beyond_b:
            vx = ax if before_a else bx
            vy = ay if before_a else by
            farthest = math.sqrt((x - vx) ** 2 + (y - vy) ** 2)
            return farthest, (x - vx) / farthest, (y - vy) / farthest, vx, vy
    return farthest, NORMALS[polygon, best, 0], NORMALS[polygon, best, 1], 0.5 * (ax + bx), 0.5 * (ay + by)


def _touch_puck(w, body, polygon, friction):
    """Add the contact of the puck with a polygon that belongs to a body. Return whether they touch."""
    dx, dy = w.bodies[PUCK, X] - w.bodies[body, X], w.bodies[PUCK, Y] - w.bodies[body, Y]
    c, s = w.rotations[body, 0], w.rotations[body, 1]
    apart, nx, ny, qx, qy = _nearest(polygon, c * dx + s * dy, c * dy - s * dx)
    if apart > REACH:
        return False
    _add_point(w, body, PUCK, nx, ny, qx, qy, 0.0, 0.0, REACH, friction)
    return True


def _is_free(x, y, reach):
    """Return whether a body at (x, y) is away from all walls and goals. `reach` is its radius."""
    return abs(y) <= HALF_HEIGHT - reach and abs(x) <= HALF_WIDTH - reach


def _is_near(polygon, x0, y0, x1, y1, reach):
    """Return whether a body on its way from (x0, y0) to (x1, y1) may touch a polygon."""
    return (
        max(x0, x1) + reach >= BOXES[polygon, 0]
        and max(y0, y1) + reach >= BOXES[polygon, 1]
        and min(x0, x1) - reach <= BOXES[polygon, 2]
        and min(y0, y1) - reach <= BOXES[polygon, 3]
    )


def _touch_walls(w):
    """Add the contacts of the puck with walls."""
    x, y = w.bodies[PUCK, X], w.bodies[PUCK, Y]
    if not _is_free(x, y, REACH):
        for polygon in range(WALLS, GOALS):
            if _is_near(polygon, x, y, x, y, REACH):
                _touch_puck(w, STATIC, polygon, FRICTION_PUCK_WALL)


def is_in_goal(w, goal):
    """Return whether the puck overlaps the left goal, 0, or the right one, 1."""
    x, y = w.bodies[PUCK, X], w.bodies[PUCK, Y]
    if _is_free(x, y, REACH):
        return False
    apart, _, _, _, _ = _nearest(GOALS + goal, x, y)
    return apart < REACH


def _lay_out(w, racket):
    """Compute where the corners and edges of a racket are on the table."""
    x, y, c, s = w.bodies[racket, X], w.bodies[racket, Y], w.rotations[racket, 0], w.rotations[racket, 1]
    for i in range(RACKET_CORNERS + 1):
        vx, vy = VERTICES[racket, i, 0], VERTICES[racket, i, 1]
        w.corners[i, 0], w.corners[i, 1] = x + c * vx - s * vy, y + s * vx + c * vy
    for i in range(RACKET_CORNERS):
        nx, ny = NORMALS[racket, i, 0], NORMALS[racket, i, 1]
        w.faces[i, 0], w.faces[i, 1] = c * nx - s * ny, s * nx + c * ny


def _apart_by(w, polygon, by_wall, edge, vertex):
    """Return how far a corner of the racket is from an edge of the wall, or else the other way round."""
    if by_wall:
        dx, dy = (
            w.corners[vertex, 0] - VERTICES[polygon, edge, 0],
            w.corners[vertex, 1] - VERTICES[polygon, edge, 1],
        )
        return NORMALS[polygon, edge, 0] * dx + NORMALS[polygon, edge, 1] * dy
    dx, dy = (
        VERTICES[polygon, vertex, 0] - w.corners[edge, 0],
        VERTICES[polygon, vertex, 1] - w.corners[edge, 1],
    )
    return w.faces[edge, 0] * dx + w.faces[edge, 1] * dy


def _deepest(w, polygon, by_wall, edge):
    """Return the vertex that is nearest to an edge, or farthest behind it, and its distance."""
    best, least = 0, 1e9
    for vertex in range(RACKET_CORNERS if by_wall else COUNTS[polygon]):
        apart = _apart_by(w, polygon, by_wall, edge, vertex)
        if apart < least:
            best, least = vertex, apart
    return best, least


def _separation(w, polygon, by_wall):
    """Return the edge of the wall, or else of the racket, that separates the two best, and their distance."""
    best, farthest = 0, -1e9
    for edge in range(COUNTS[polygon] if by_wall else RACKET_CORNERS):
        _, apart = _deepest(w, polygon, by_wall, edge)
        if apart > farthest:
            best, farthest = edge, apart
    return best, farthest


def _most_opposed(w, polygon, by_wall, edge):
    """Return the edge of the racket, or else of the wall, that faces an edge of the other one."""
    best, least = 0, 1e9
    for i in range(RACKET_CORNERS if by_wall else COUNTS[polygon]):
        e, f = (edge, i) if by_wall else (i, edge)
        along = NORMALS[polygon, e, 0] * w.faces[f, 0] + NORMALS[polygon, e, 1] * w.faces[f, 1]
        if along < least:
            best, least = i, along
    return best


def _touch(w, racket, polygon):
    """Add the contact points of a racket, laid out, with a wall or goal."""
    edge, apart = _separation(w, polygon, True)
    if apart > 2 * SKIN:
        return
    other_edge, other = _separation(w, polygon, False)
    if other > 2 * SKIN:
        return
    by_wall = other <= 0.98 * apart + 0.1 * SLOP
    if not by_wall:
        edge = other_edge
    facing = _most_opposed(w, polygon, by_wall, edge)
    if by_wall:
        ax, ay = VERTICES[polygon, edge, 0], VERTICES[polygon, edge, 1]
        bx, by = VERTICES[polygon, edge + 1, 0], VERTICES[polygon, edge + 1, 1]
        nx, ny = NORMALS[polygon, edge, 0], NORMALS[polygon, edge, 1]
        x1, y1, x2, y2 = (
            w.corners[facing, 0],
            w.corners[facing, 1],
            w.corners[facing + 1, 0],
            w.corners[facing + 1, 1],
        )
    else:
        ax, ay = w.corners[edge, 0], w.corners[edge, 1]
        bx, by = w.corners[edge + 1, 0], w.corners[edge + 1, 1]
        nx, ny = w.faces[edge, 0], w.faces[edge, 1]
        x1, y1 = VERTICES[polygon, facing, 0], VERTICES[polygon, facing, 1]
        x2, y2 = VERTICES[polygon, facing + 1, 0], VERTICES[polygon, facing + 1, 1]
    # The part of the facing edge that lies beside this edge, and a little more: from `low` to `high`.
    tx, ty = -ny, nx
    start, end = tx * (x1 - ax) + ty * (y1 - ay), tx * (x2 - ax) + ty * (y2 - ay)
    length = tx * (bx - ax) + ty * (by - ay)
    low, high = 0.0, 1.0
    if start != end:
        first, last = (-2 * SKIN - start) / (end - start), (length + 2 * SKIN - start) / (end - start)
        low, high = max(low, min(first, last)), min(high, max(first, last))
    if low > high:
        return
    c, s = w.rotations[racket, 0], w.rotations[racket, 1]
    for i in range(2):
        t = low if i == 0 else high
        x, y = x1 + t * (x2 - x1), y1 + t * (y2 - y1)
        if nx * (x - ax) + ny * (y - ay) > 2 * SKIN:
            continue
        if by_wall:
            dx, dy = x - w.bodies[racket, X], y - w.bodies[racket, Y]
            px, py = c * dx + s * dy, c * dy - s * dx
            _add_point(w, STATIC, racket, nx, ny, ax, ay, px, py, 2 * SKIN, FRICTION_RACKET)
        else:
            mx, my = NORMALS[racket, edge, 0], NORMALS[racket, edge, 1]
            qx, qy = VERTICES[racket, edge, 0], VERTICES[racket, edge, 1]
            _add_point(w, racket, STATIC, mx, my, qx, qy, x, y, 2 * SKIN, FRICTION_RACKET)


def _touch_table(w, racket):
    """Add the contacts of a racket with walls and goals."""
    x, y = w.bodies[racket, X], w.bodies[racket, Y]
    if not _is_free(x, y, RACKET_REACH):
        _lay_out(w, racket)
        for polygon in range(WALLS, POLYGONS):
            if _is_near(polygon, x, y, x, y, RACKET_REACH):
                _touch(w, racket, polygon)


# -- solving -------------------------------------------------------------------------------------------


def _plane_and_point(w, i):
    """Return the normal of contact point `i`, a point of its plane, and the point of the other body."""
    bodies, a, b = w.bodies, w.a[i], w.b[i]
    c, s = w.rotations[a, 0], w.rotations[a, 1]
    nx, ny = c * w.plane_nx[i] - s * w.plane_ny[i], s * w.plane_nx[i] + c * w.plane_ny[i]
    qx = bodies[a, X] + c * w.plane_x[i] - s * w.plane_y[i]
    qy = bodies[a, Y] + s * w.plane_x[i] + c * w.plane_y[i]
    c, s = w.rotations[b, 0], w.rotations[b, 1]
    px = bodies[b, X] + c * w.point_x[i] - s * w.point_y[i]
    py = bodies[b, Y] + s * w.point_x[i] + c * w.point_y[i]
    return nx, ny, qx, qy, px, py


def _prepare(w, i):
    """Compute what the velocity solver needs of contact point `i`."""
    bodies, a, b = w.bodies, w.a[i], w.b[i]
    nx, ny, qx, qy, px, py = _plane_and_point(w, i)
    # The middle between both skins. The puck's skin is its radius.
    apart = nx * (px - qx) + ny * (py - qy)
    middle = 0.5 * (2 * SKIN - apart - w.skins[i])
    px, py = px + middle * nx, py + middle * ny
    rax, ray, rbx, rby = px - bodies[a, X], py - bodies[a, Y], px - bodies[b, X], py - bodies[b, Y]
    w.normal_x[i], w.normal_y[i] = nx, ny
    w.arm_ax[i], w.arm_ay[i], w.arm_bx[i], w.arm_by[i] = rax, ray, rbx, rby
    masses = INVERSE_MASS[a] + INVERSE_MASS[b]
    an, bn = rax * ny - ray * nx, rbx * ny - rby * nx
    at, bt = rax * nx + ray * ny, rbx * nx + rby * ny  # the tangent is (ny, -nx)
    w.mass_n[i] = 1.0 / (masses + an * an * INVERSE_INERTIA[a] + bn * bn * INVERSE_INERTIA[b])
    w.mass_t[i] = 1.0 / (masses + at * at * INVERSE_INERTIA[a] + bt * bt * INVERSE_INERTIA[b])
    vx, vy = _approach(w, i)
    speed = vx * nx + vy * ny
    w.bias[i] = -RESTITUTION_PUCK * speed if b == PUCK and speed < -SLOWEST_BOUNCE else 0.0
    w.impulse_n[i] = w.impulse_t[i] = 0.0


def _approach(w, i):
    """Return the velocity of body `b` relative to body `a` at contact point `i`."""
    bodies, a, b = w.bodies, w.a[i], w.b[i]
    spin_a, spin_b = bodies[a, SPIN], bodies[b, SPIN]
    vx = bodies[b, VX] - spin_b * w.arm_by[i] - bodies[a, VX] + spin_a * w.arm_ay[i]
    vy = bodies[b, VY] + spin_b * w.arm_bx[i] - bodies[a, VY] - spin_a * w.arm_ax[i]
    return vx, vy


def _push(w, i, x, y):
    """Apply an impulse at contact point `i`."""
    bodies, a, b = w.bodies, w.a[i], w.b[i]
    bodies[a, VX] -= INVERSE_MASS[a] * x
    bodies[a, VY] -= INVERSE_MASS[a] * y
    bodies[a, SPIN] -= INVERSE_INERTIA[a] * (w.arm_ax[i] * y - w.arm_ay[i] * x)
    bodies[b, VX] += INVERSE_MASS[b] * x
    bodies[b, VY] += INVERSE_MASS[b] * y
    bodies[b, SPIN] += INVERSE_INERTIA[b] * (w.arm_bx[i] * y - w.arm_by[i] * x)


def _solve_velocities(w):
    """Find impulses such that no contact point approaches, with friction and restitution."""
    for i in range(w.points):
        _prepare(w, i)
    for _ in range(VELOCITY_SWEEPS):
        change = 0.0
        for i in range(w.points):
            nx, ny = w.normal_x[i], w.normal_y[i]
            vx, vy = _approach(w, i)
            most = w.friction[i] * w.impulse_n[i]
            after = min(max(w.impulse_t[i] - w.mass_t[i] * (vx * ny - vy * nx), -most), most)
            impulse = after - w.impulse_t[i]
            w.impulse_t[i] = after
            change = max(change, abs(impulse))
            _push(w, i, impulse * ny, -impulse * nx)
            vx, vy = _approach(w, i)
            after = max(w.impulse_n[i] - w.mass_n[i] * (vx * nx + vy * ny - w.bias[i]), 0.0)
            impulse = after - w.impulse_n[i]
            w.impulse_n[i] = after
            change = max(change, abs(impulse))
            _push(w, i, impulse * nx, impulse * ny)
        if change < CONVERGED:
            break


def _shift(w, body, x, y, angle):
    w.bodies[body, X] += x
    w.bodies[body, Y] += y
    if body < PUCK:  # the angles of the others do not matter
        w.bodies[body, ANGLE] += angle
        _turn(w, body)


def _solve_positions(w, factor, enough):
    """Move overlapping bodies apart, all but `SLOP`."""
    for _ in range(POSITION_SWEEPS):
        worst = 0.0
        for i in range(w.points):
            nx, ny, qx, qy, px, py = _plane_and_point(w, i)
            apart = nx * (px - qx) + ny * (py - qy) - w.skins[i]
            worst = min(worst, apart)
            wanted = min(max(factor * (apart + SLOP), -0.2), 0.0)
            if wanted == 0.0:
                continue
            bodies, a, b = w.bodies, w.a[i], w.b[i]
            an = (px - bodies[a, X]) * ny - (py - bodies[a, Y]) * nx
            bn = (px - bodies[b, X]) * ny - (py - bodies[b, Y]) * nx
            mass_a, mass_b, spin_a, spin_b = (
                INVERSE_MASS[a],
                INVERSE_MASS[b],
                INVERSE_INERTIA[a],
                INVERSE_INERTIA[b],
            )
            impulse = -wanted / (mass_a + mass_b + an * an * spin_a + bn * bn * spin_b)
            _shift(w, a, -mass_a * impulse * nx, -mass_a * impulse * ny, -spin_a * an * impulse)
            _shift(w, b, mass_b * impulse * nx, mass_b * impulse * ny, spin_b * bn * impulse)
        if worst >= enough:
            break


def _move(w, body, seconds):
    """Move a body along its velocity, which Box2D limits: in a step to 2 metres and a quarter turn."""
    way = seconds * math.sqrt(w.bodies[body, VX] ** 2 + w.bodies[body, VY] ** 2)
    if way > FARTHEST:
        w.bodies[body, VX] *= FARTHEST / way
        w.bodies[body, VY] *= FARTHEST / way
    turn = abs(seconds * w.bodies[body, SPIN])
    if turn > LARGEST_TURN:
        w.bodies[body, SPIN] *= LARGEST_TURN / turn
    _shift(
        w, body, seconds * w.bodies[body, VX], seconds * w.bodies[body, VY], seconds * w.bodies[body, SPIN]
    )


# -- fast bodies ---------------------------------------------------------------------------------------
# A body that would come too near to a wall on its way is stopped there, bounces, and moves on for the rest of
# the step. Box2D looks along one axis at a time, that of the nearest features, with a tolerance. These
# functions do the same.


def _puck_stop(polygon, x0, y0, x1, y1):
    """Return the part of the puck's way after which a wall stops it."""
    t = 0.0
    for _ in range(20):
        apart, nx, ny, qx, qy = _nearest(polygon, x0 + t * (x1 - x0), y0 + t * (y1 - y0))
        if apart <= 0.0:
            return NEVER
        if apart < PUCK_STOP + TOLERANCE:
            return t
        last = nx * (x1 - qx) + ny * (y1 - qy)
        if last > PUCK_STOP + TOLERANCE or t >= 1.0:
            return NEVER
        if last > PUCK_STOP - TOLERANCE:
            t = 1.0
        elif abs(0.5 * (apart + last) - PUCK_STOP) < TOLERANCE:
            t = 0.5 * (t + 1.0)
        else:
            t += (1.0 - t) * (apart - PUCK_STOP) / (apart - last)
    return NEVER


def _stop_puck(w, x0, y0):
    """Let the puck, which came from (x0, y0), bounce off walls."""
    left = 1.0  # of the step
    for _ in range(MOST_STOPS):
        x1, y1 = w.bodies[PUCK, X], w.bodies[PUCK, Y]
        if _is_free(x0, y0, REACH) and _is_free(x1, y1, REACH):
            return
        first = NEVER
        for polygon in range(WALLS, GOALS):
            if _is_near(polygon, x0, y0, x1, y1, REACH):
                first = min(first, _puck_stop(polygon, x0, y0, x1, y1))
        if first > LAST_STOP:
            return
        w.bodies[PUCK, X], w.bodies[PUCK, Y] = x0 + first * (x1 - x0), y0 + first * (y1 - y0)
        w.points = 0
        _touch_walls(w)
        _solve_positions(w, 0.75, -1.5 * SLOP)
        x0, y0 = w.bodies[PUCK, X], w.bodies[PUCK, Y]
        _solve_velocities(w)
        left *= 1.0 - first
        _move(w, PUCK, left * TIME_STEP)


def _pose(w, racket, t):
    """Put a racket where it is after a part of its way."""
    for i in range(3):
        w.bodies[racket, X + i] = w.way[0, i] + t * (w.way[1, i] - w.way[0, i])
    _turn(w, racket)
    _lay_out(w, racket)


def _racket_stop(w, racket, polygon):
    """Return the part of a racket's way after which a wall or goal stops it."""
    t1 = 0.0
    for _ in range(20):
        _pose(w, racket, t1)
        edge, apart = _separation(w, polygon, True)
        other_edge, other = _separation(w, polygon, False)
        by_wall = apart >= other
        if not by_wall:
            edge, apart = other_edge, other
        if apart <= 0.0:
            return NEVER
        if apart < RACKET_STOP + TOLERANCE:
            return t1
        t2 = 1.0
        for _ in range(8):
            _pose(w, racket, t2)
            vertex, s2 = _deepest(w, polygon, by_wall, edge)
            if s2 > RACKET_STOP + TOLERANCE:
                return NEVER
            if s2 > RACKET_STOP - TOLERANCE:
                break
            _pose(w, racket, t1)
            s1 = _apart_by(w, polygon, by_wall, edge, vertex)
            if s1 < RACKET_STOP - TOLERANCE:
                return NEVER
            if s1 <= RACKET_STOP + TOLERANCE:
                return t1
            low, high = t1, t2
            for i in range(50):
                t2 = low + (RACKET_STOP - s1) * (high - low) / (s2 - s1) if i & 1 else 0.5 * (low + high)
                _pose(w, racket, t2)
                apart = _apart_by(w, polygon, by_wall, edge, vertex)
                if abs(apart - RACKET_STOP) < TOLERANCE:
                    break
                if apart > RACKET_STOP:
                    low, s1 = t2, apart
                else:
                    high, s2 = t2, apart
        if t1 >= 1.0:
            return NEVER
        t1 = t2
    return NEVER


def _stop_racket(w, racket, x0, y0, angle0):
    """Stop a racket, which came from (x0, y0) and an angle, at walls and goals."""
    left = 1.0  # of the step
    w.way[0, 0], w.way[0, 1], w.way[0, 2] = x0, y0, angle0
    for _ in range(MOST_STOPS):
        x0, y0, x1, y1 = w.way[0, 0], w.way[0, 1], w.bodies[racket, X], w.bodies[racket, Y]
        if _is_free(x0, y0, RACKET_REACH) and _is_free(x1, y1, RACKET_REACH):
            return
        w.way[1, :] = w.bodies[racket, :3]
        first = NEVER
        for polygon in range(WALLS, POLYGONS):
            if _is_near(polygon, x0, y0, x1, y1, RACKET_REACH):
                first = min(first, _racket_stop(w, racket, polygon))
        _pose(w, racket, min(first, 1.0))
        if first > LAST_STOP:
            return
        w.points = 0
        _touch_table(w, racket)
        if w.points == 0:
            _pose(w, racket, 1.0)
            return
        _solve_positions(w, 0.75, -1.5 * SLOP)
        w.way[0, :] = w.bodies[racket, :3]
        _solve_velocities(w)
        left *= 1.0 - first
        _move(w, racket, left * TIME_STEP)


# -- the step ------------------------------------------------------------------------------------------


def find_contacts(w):
    """Find all contact points at the start of a step."""
    w.points = 0
    for body in range(PUCK, BODIES):
        w.rotations[body, 0], w.rotations[body, 1] = 1.0, 0.0
    w.bodies[STATIC, :] = 0.0
    for racket in range(2):
        _turn(w, racket)
        dx, dy = w.bodies[PUCK, X] - w.bodies[racket, X], w.bodies[PUCK, Y] - w.bodies[racket, Y]
        near = dx * dx + dy * dy <= (RACKET_RADIUS + REACH) ** 2
        w.touches[racket] = near and _touch_puck(w, racket, racket, FRICTION_RACKET)
    _touch_walls(w)
    for racket in range(2):
        _touch_table(w, racket)


def advance(w):
    """Move all bodies by one step, with the contact points that `find_contacts` has found."""
    before = (
        (w.bodies[0, X], w.bodies[0, Y], w.bodies[0, ANGLE]),
        (w.bodies[1, X], w.bodies[1, Y], w.bodies[1, ANGLE]),
    )
    x, y = w.bodies[PUCK, X], w.bodies[PUCK, Y]
    if w.points:
        _solve_velocities(w)
    for body in range(STATIC):
        _move(w, body, TIME_STEP)
    if w.points:
        _solve_positions(w, 0.2, -3 * SLOP)
    for racket in range(2):
        _stop_racket(w, racket, before[racket][0], before[racket][1], before[racket][2])
    _stop_puck(w, x, y)
