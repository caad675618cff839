"""Configuration files in, validated settings out; every problem named with its place."""
