"""stub"""


def bench() -> None:
    """stub"""
