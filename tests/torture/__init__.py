"""Stress tests of runs: killed, without power, with failing calls, damaged, concurrent. See benchmarks/RELIABILITY.md.

    python -m tests.torture                         all parts (`make torture`)
    python -m tests.torture --only writes,damage    some parts; each updates its row of the report when it is done
    python -m tests.torture --scale 0.1             a tenth of the cases

Every program is a fork of this process (`tests/helpers/forks.py`). A training run has 12 updates and takes less than a
second.
"""
