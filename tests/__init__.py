"""Tests. A package of this name that is installed elsewhere must not be taken for this one."""
