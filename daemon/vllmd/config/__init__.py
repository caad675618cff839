"""Configuration files in, validated settings out; every problem named with its place.

Nothing is imported here: the commands that ask a daemon need `files` alone, and are typed often.
"""
