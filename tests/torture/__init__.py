"""What a training survives: killed, stopped, damaged, crowded, without room; counted in benchmarks/RELIABILITY.md.

    python -m tests.torture                         all of it, about an hour on 2 cores (`make torture`)
    python -m tests.torture --only writes,damage    some parts; each writes its line of the report when it is done
    python -m tests.torture --scale 0.1             a tenth of it

Every program is a fork of this process (`tests/helpers/forks.py`); a training here has 12 updates and takes less
than a second.
"""
