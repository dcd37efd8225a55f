"""Regular expressions of the integers in a range, of any size."""

from __future__ import annotations


def range_pattern(least: int | None, most: int | None) -> str | None:
    """Return the pattern of the integers from `least` to `most` as JSON writes them.

    None as a limit: there is none. None: no integer is in the range.
    """
    parts = []
    if most is None or most >= 0:
        parts += _natural(max(least or 0, 0), most)
    if least is None or least < 0:
        lowest = 1 if most is None or most >= 0 else -most
        parts += [f"-{part}" for part in _natural(lowest, None if least is None else -least)]
    return f"(?:{'|'.join(parts)})" if parts else None


def _natural(least: int, most: int | None) -> list[str]:
    """Return the patterns of the numbers from `least` on, 0 or more."""
    if most is None:
        digits = len(str(least))
        longer = rf"[1-9][0-9]{{{digits},}}"
        return [*_natural(least, 10**digits - 1), longer]
    if least > most:
        return []
    found = ["0"] if least == 0 else []
    least = max(least, 1)
    digits, longest = len(str(least)), len(str(most))
    if digits < longest and least != 10 ** (digits - 1):
        found += _of_one_length(str(least), "9" * digits)
        digits += 1
        least = 10 ** (digits - 1)
    if digits < longest:
        found.append(f"[1-9][0-9]{{{digits - 1},{longest - 2}}}")
        least = 10 ** (longest - 1)
    return [*found, *_of_one_length(str(least), str(most))] if least <= most else found


def _of_one_length(least: str, most: str) -> list[str]:
    """Return the patterns of the numbers between two with equally many digits."""
    if least == most:
        return [least]
    common = next(index for index, digit in enumerate(least) if digit != most[index])
    prefix, rest = least[:common], len(least) - common - 1
    first, last = int(least[common]), int(most[common])
    found = []
    if least[common + 1 :].strip("0"):
        found += _from(least, common)
        first += 1
    if most[common + 1 :].strip("9"):
        found += _up_to(most, common)
        last -= 1
    if first <= last:
        found.append(f"{prefix}[{first}-{last}]{_any(rest)}")
    return found


def _from(least: str, common: int) -> list[str]:
    """Return the patterns of the numbers from one on with the same digits up to `common`."""
    found = [least]
    for index in range(common + 1, len(least)):
        if least[index] != "9":
            digit = int(least[index]) + 1
            found.append(f"{least[:index]}[{digit}-9]{_any(len(least) - index - 1)}")
    return found


def _up_to(most: str, common: int) -> list[str]:
    """Return the patterns of the numbers up to one with the same digits up to `common`."""
    found = [most]
    for index in range(common + 1, len(most)):
        if most[index] != "0":
            digit = int(most[index]) - 1
            found.append(f"{most[:index]}[0-{digit}]{_any(len(most) - index - 1)}")
    return found


def _any(count: int) -> str:
    return f"[0-9]{{{count}}}" if count else ""
