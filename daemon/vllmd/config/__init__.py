"""Configuration files in, validated settings out; every problem named with its place."""

from vllmd.config.env_file import read_env_file
from vllmd.config.files import DEFAULT_ETC, config_files, etc_folder
from vllmd.config.load import in_order, load_settings
from vllmd.config.point import point_at

__all__ = ["DEFAULT_ETC", "config_files", "etc_folder", "in_order", "load_settings", "point_at", "read_env_file"]
