"""Who is asked together: everybody once, in order, and no worker much longer than another."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coterie.runtime.dispatch import MAX_LOST_NODES, Dispatcher, Job, Setback, divide, divide_by_samples


@given(
    samples=st.lists(st.integers(0, 300), max_size=200),
    workers=st.integers(1, 9),
    most=st.integers(1, 64),
)
def test_everybody_is_asked_once(samples: list[int], workers: int, most: int) -> None:
    found = divide_by_samples(np.array(samples, np.int64), workers, most)
    assert [i for some in found for i in some] == list(range(len(samples)))
    assert all(0 < len(some) <= most for some in found)


@given(samples=st.lists(st.integers(1, 300), min_size=1, max_size=64), workers=st.integers(1, 9))
def test_the_workers_shares_are_even(samples: list[int], workers: int) -> None:
    """No chunk has more than a worker's share and one client's samples."""
    found = divide_by_samples(np.array(samples), workers, 64)
    assert len(found) <= workers
    for some in found:
        assert sum(samples[i] for i in some) <= sum(samples) / workers + max(samples) + 1e-9


def test_where_it_may_matter_the_number_of_workers_does_not() -> None:
    assert [len(some) for some in divide(100, 17)] == [13] * 7 + [9]


# ---- handing out


def test_the_largest_jobs_go_first_and_small_ones_together() -> None:
    """A worker's share of what is left is the limit."""
    sizes = [30, 5, 5, 900, 5, 300] + [5] * 60
    queue, taken = Dispatcher([Job([size], size) for size in sizes], share=0.25, most=128), []
    while queue:
        taken.append([job.weight for job in queue.take(workers=2)])
    assert [size for some in taken for size in some] == sorted(sizes, reverse=True)
    assert taken[:2] == [[900], [300]]
    assert max(len(some) for some in taken) > 2
    assert len(taken[-1]) == 1


def test_no_more_tasks_go_together_than_are_allowed() -> None:
    jobs = [Job([1, 2], 1) for _ in range(100)]
    assert [len(Dispatcher(jobs, share=1.0, most=most).take(1)) for most in (0, 7, 8)] == [1, 3, 4]


def test_what_nobody_began_is_taken_next() -> None:
    queue = Dispatcher([Job([weight], weight) for weight in (1, 2, 3, 4)], share=10.0, most=2)
    first = queue.take(1)
    queue.put_back(first)
    assert [job.weight for job in queue.take(1)] == [job.weight for job in first] == [4, 3]
    assert [job.weight for job in queue.take(1)] == [2, 1]


# ---- blame

PROCESS, NODE, CLIENTS = Setback("died", "process"), Setback("lost", "node"), Setback("late")


def rest(queue: Dispatcher) -> list[Job]:
    """All that waits, job by job."""
    return [job for _ in range(len(queue)) for job in queue.take(1)]


def test_a_dead_worker_costs_its_job_one_more_try_as_it_was_and_then_is_blamed_on_a_client() -> None:
    queue = Dispatcher([], 1.0, 128)
    assert queue.retry([Job([1, 2, 3], 9)], PROCESS) == []
    (again,) = rest(queue)
    assert (again.tasks, again.alone) == ([1, 2, 3], True)
    assert queue.retry([again], PROCESS) == []
    each = rest(queue)
    assert [job.tasks for job in each] == [[1], [2], [3]]
    assert queue.retry([each[1]], PROCESS) == []
    (last,) = rest(queue)
    assert queue.retry([last], PROCESS) == [last]
    assert not queue


def test_jobs_of_one_message_are_each_tried_by_themselves() -> None:
    queue, jobs = Dispatcher([], 1.0, 128), [Job([1, 2], 2), Job([3], 1)]
    for setback in (PROCESS, CLIENTS):
        assert queue.retry(jobs, setback) == []
        again = rest(queue)
        assert [job.tasks for job in again] == [[1, 2], [3]]
        assert all(job.alone for job in again)


def test_who_is_late_is_found_and_given_up() -> None:
    queue = Dispatcher([], 1.0, 128)
    assert queue.retry([Job([1, 2], 2)], CLIENTS) == []
    late, other = rest(queue)
    assert queue.retry([late], CLIENTS) == [late]
    assert other.tasks == [2]


def test_a_lost_node_is_nobodys_fault_for_a_while() -> None:
    queue, job = Dispatcher([], 1.0, 128), Job([1, 2], 2)
    for _ in range(MAX_LOST_NODES):
        assert queue.retry([job], NODE) == []
        (job,) = rest(queue)
        assert (job.tasks, job.alone) == ([1, 2], False)
    assert queue.retry([job], NODE) == [job]
