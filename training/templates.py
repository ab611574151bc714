"""Sentences with what running text lacks: numbers, dates, times, names, spelled letters, telephone talk.

Numbers are always words (num2words), as the model writes them.
"""

import random
from collections.abc import Callable, Iterator, Sequence


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MONTHS = _words("January February March April May June July August September October November December")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
GIVEN = _words(
    "James Mary John Patricia Robert Jennifer Michael Linda David Elizabeth William Susan Thomas Sarah Charles Karen "
    "Daniel Nancy Matthew Lisa Anthony Sandra Paul Ashley Emily Andrew Joshua Michelle Kevin Carol Brian Amanda George "
    "Peter Anna Alice Emma Oliver Sophie Henry Lucy Jack Olivia Noah Ella Leo Grace Max Ruby Maria Ahmed Wei Priya Omar"
)
FAMILY = _words(
    "Smith Johnson Williams Brown Jones Garcia Miller Davis Wilson Anderson Taylor Moore Jackson Martin Lee Thompson "
    "White Harris Clark Lewis Robinson Walker Young Allen King Wright Scott Hill Green Adams Baker Nelson Carter "
    "Mitchell Roberts Turner Phillips Campbell Parker Evans Collins Stewart Morris Murphy Cook Rogers Cooper Reed Bell"
)
CITIES = _words(
    "London Paris Berlin Tokyo Chicago Boston Seattle Denver Dallas Houston Toronto Sydney Dublin Madrid Rome Vienna "
    "Oslo Delhi Cairo Lima Austin Atlanta Phoenix Portland Miami Detroit Glasgow Manchester Bristol Cambridge Oxford "
    "Vancouver Montreal Melbourne Singapore Amsterdam Geneva Stockholm Helsinki Athens Istanbul Lisbon Warsaw Prague"
)
THINGS = _words(
    "meeting report order invoice package flight train appointment interview lecture concert delivery project budget "
    "schedule call ticket contract deadline presentation review test server update backup account message address"
)
COUNTED = _words(
    "apples books tickets chairs bottles files emails messages pages boxes computers letters cars houses people "
    "students workers hours minutes days weeks points votes dollars pounds miles degrees seats copies"
)
SPELLING = _words(
    "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa quebec romeo "
    "sierra tango uniform victor whiskey x-ray yankee zulu"
)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PART_OF_DAY = ("", "", " in the morning", " in the afternoon", " in the evening")
CHOICES = ("continue", "hear this again", "speak to a person", "cancel", "go back", "leave a note", "confirm")
ALONE = (
    "Yes", "No", "Okay", "Sure", "Well", "Hello", "Thank you", "Good morning", "Good evening", "Goodbye", "Sorry",
    "Please", "Maybe", "Of course", "Never mind", "Excuse me", "I see", "Not yet", "All right", "One moment, please",
)  # fmt: skip


class Speaker:
    """Says things of chance; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def one(self, words: Sequence[str]) -> str:
        """One of several."""
        return self.chance.choice(words)

    def number(self, low: int, high: int, form: str = "cardinal") -> str:
        """In words; `form` is num2words's."""
        from num2words import num2words  # of the extra train

        words: str = num2words(self.chance.randint(low, high), to=form)
        return words.replace(",", "")

    def amount(self) -> str:
        """Small more often than large."""
        return self.number(0, self.chance.choice((20, 100, 1000, 100_000, 5_000_000)))

    def digits(self, count: int) -> str:
        """One after the other."""
        return " ".join(self.number(0, 9) for _ in range(count))

    def year(self) -> str:
        """As it is said."""
        return self.number(1800, 2035, "year").replace("oh-", "oh ")

    def date(self) -> str:
        """With or without a year."""
        month, day = self.one(MONTHS), self.number(1, 31, "ordinal")
        said = self.one((f"{month} {day}", f"the {day} of {month}", f"{self.one(DAYS)}, {month} {day}"))
        return said + (f", {self.year()}" if self.chance.random() < 0.4 else "")

    def clock(self) -> str:
        """A time of day."""
        hour = self.number(1, 12)
        minute = self.chance.choice((0, 0, 5, 10, 15, 20, 30, 30, 40, 45, 50, self.chance.randint(1, 59)))
        if minute == 0:
            return hour + self.one((" o'clock", *PART_OF_DAY))
        if minute in (15, 30, 45) and self.chance.random() < 0.3:
            return {15: "a quarter past", 30: "half past", 45: "a quarter to"}[minute] + f" {hour}"
        said = self.number(minute, minute)
        return f"{hour} {'oh ' if minute < 10 else ''}{said}{self.one(PART_OF_DAY)}"

    def name(self) -> str:
        """Of a person."""
        return self.one(GIVEN) + (f" {self.one(FAMILY)}" if self.chance.random() < 0.6 else "")

    def spelled(self) -> str:
        """A name, letter by letter."""
        return " ".join(self.one(GIVEN + FAMILY).upper())


TEMPLATES: tuple[Callable[[Speaker], str], ...] = (
    lambda s: f"The {s.one(THINGS)} is scheduled for {s.date()} at {s.clock()}",
    lambda s: f"Please call me back at {s.digits(s.chance.choice((3, 4, 7, 10)))}",
    lambda s: f"My phone number is {s.digits(3)}, {s.digits(3)}, {s.digits(4)}",
    lambda s: f"There were {s.amount()} {s.one(COUNTED)} in total",
    lambda s: f"The {s.one(THINGS)} costs {s.amount()} dollars and {s.number(1, 99)} cents",
    lambda s: f"The {s.one(THINGS)} costs {s.amount()} dollars",
    lambda s: f"It is {s.clock()} in {s.one(CITIES)}",
    lambda s: f"In {s.year()}, {s.name()} moved from {s.one(CITIES)} to {s.one(CITIES)}",
    lambda s: f"Her name is spelled {s.spelled()}",
    lambda s: f"That is {s.name()}, {s.spelled()}",
    lambda s: f"Room {s.number(1, 999)} is on the {s.number(1, 20, 'ordinal')} floor",
    lambda s: f"Your {s.one(THINGS)} number is {s.digits(s.chance.randint(3, 8))}",
    lambda s: f"{s.number(1, 99)} plus {s.number(1, 99)} equals {s.number(2, 198)}",
    lambda s: f"The temperature is {s.number(1, 110)} degrees",
    lambda s: f"About {s.number(1, 100)} percent of the {s.one(COUNTED)} came from {s.one(CITIES)}",
    lambda s: f"Press {s.number(0, 9)} to {s.one(CHOICES)}",
    lambda s: f"For the {s.one(THINGS)} desk, please dial {s.number(0, 9)} now",
    lambda s: f"{s.name()} will meet {s.name()} in {s.one(CITIES)} on {s.one(DAYS)}",
    lambda s: f"The flight from {s.one(CITIES)} to {s.one(CITIES)} leaves at {s.clock()}",
    lambda s: f"The code is {' '.join(s.one(LETTERS) for _ in range(3))} {s.digits(s.chance.randint(1, 4))}",
    lambda s: f"Say again, {' '.join(s.one(SPELLING) for _ in range(s.chance.randint(2, 5)))}",
    lambda s: f"We waited {s.number(2, 60)} {s.one(('minutes', 'hours', 'days', 'weeks'))} for the {s.one(THINGS)}",
    lambda s: s.date(),
    lambda s: s.amount(),
    lambda s: s.digits(s.chance.randint(2, 10)),
    lambda s: s.clock(),
    lambda s: f"Hello, this is {s.name()} speaking",
    lambda s: f"Hi {s.one(GIVEN)}, can you send me the {s.one(THINGS)} before {s.one(DAYS)}?",
    lambda s: f"{s.one(GIVEN)}, could you please check the {s.one(THINGS)}?",
    lambda s: f"Thanks, {s.one(GIVEN)}, I will see you {s.one(('tomorrow', 'next week', f'at {s.clock()}'))}",
    lambda s: f"The distance is {s.amount()} {s.one(('miles', 'kilometers', 'feet', 'meters'))}",
    lambda s: f"Chapter {s.number(1, 60)}, page {s.number(1, 600)}",
    lambda s: s.one(ALONE),
    lambda s: f"I live at {s.amount()} {s.one(FAMILY)} {s.one(('Street', 'Avenue', 'Road'))}, {s.one(CITIES)}",
    lambda s: f"The score was {s.number(0, 9)} to {s.number(0, 9)}",
    lambda s: f"Version {s.number(0, 20)} point {s.number(0, 20)} came out in {s.one(MONTHS)} {s.year()}",
    lambda s: f"The extension you have dialed is {s.digits(4)}",
    lambda s: f"You have {s.number(0, 40)} new messages and {s.number(0, 40)} saved messages",
)


def sentences(count: int, seed: int) -> Iterator[str]:
    """So many, some of them alike."""
    speaker = Speaker(seed)
    for _ in range(count):
        yield speaker.chance.choice(TEMPLATES)(speaker)
