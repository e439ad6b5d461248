"""What stands for kill -9 in the process of a test."""


class Killed(BaseException):
    """Nothing below catches it, and a connection that it falls on is gone."""
