"""Word lists that the generators draw from."""

from __future__ import annotations

import random


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("|")]


NAMES = _words(
    """
    Maria Tom Anna Pedro Lucia Kofi Amina Yuki Ivan Olga Hugo Nina Omar Leila Felix Clara Diego
    Rosa Sam Emma Noah Mia Liam Zoe Ravi Priya Chen Mei Lars Ingrid Paul Julia Marco Elena David
    Sara Ben Laura Peter Alice Bob Carla Jonas Karim Fatima Victor Irene Oscar Teresa Max Eva Luis
    Carmen John Jane Mary James Linda Kevin
    """
)
CITIES = _words(
    """
    Lima Cusco Paris London Berlin Madrid Rome Oslo Tokyo Delhi Cairo Lagos Nairobi Boston Chicago
    Toronto Quito Bogota Vienna Prague Warsaw Dublin Lisbon Athens Seoul Sydney Havana Kyoto Milan
    Geneva Zurich Munich Hamburg Porto Seville Denver Austin Miami Accra Dakar Tunis Hanoi Manila
    Jakarta Mumbai Arequipa Santiago Moscow Helsinki Stockholm
    """
)
JOBS = _words(
    """
    teacher doctor baker farmer nurse pilot painter lawyer cook singer writer driver engineer
    carpenter tailor dentist gardener plumber actor chemist
    """
)
COLOURS = _words("red green blue yellow orange purple black white")
THINGS = _words(
    """
    box door safe bag locker drawer case bike house car boat tower cabinet garage suitcase
    """
)
ITEMS = _words(
    """
    key map lamp book phone clock ring letter camera wallet passport umbrella hammer guitar ticket
    """
)
ROOMS = _words("kitchen bedroom garage garden office bathroom cellar attic hall library")
ANIMALS = _words("otter cat dog horse fox owl rabbit tiger whale eagle bear panda wolf goat frog")
FRUITS = _words("apple banana mango cherry peach plum lemon melon grape papaya pear kiwi fig")
TOPICS = _phrases(
    """
    meeting|holiday|new car|budget|garden party|school trip|rent|concert|project plan|lost
    key|train ticket|old house|birthday cake|football match
    """
)
TASKS = _phrases(
    """
    water the plants|call Anna|buy milk|feed the cat|take out the bins|pay the rent|book a
    table|write to Tom|clean the kitchen|pick up the kids|go to the dentist|charge the phone|send
    the letter|bake a cake
    """
)
LANGUAGES = _words("French German Spanish Italian Dutch Polish Greek Turkish Hindi Quechua")
PHRASES = _phrases(
    """
    good morning|thank you|see you soon|good night|where is the station|happy birthday|I am
    hungry|how are you|the house is red|welcome
    """
)
SKIES = _words("sunny cloudy rainy windy snowy foggy clear")

_ADJECTIVES = _words(
    """
    old small quiet tall bright dark wet dry warm cold young slow quick heavy light soft long
    narrow wide gentle busy lazy calm strange simple happy tired clean empty full
    """
)
_NOUNS = _words(
    """
    river mountain forest street market village window table chair bridge road field cloud tree
    stone bird boy girl farmer sailor train ship wall roof path lake island hill river garden
    morning evening story song wind rain snow shop school church wheel fence horse dog cat
    """
)
_VERBS = _words(
    """
    stands waits sleeps turns rests falls grows shines moves sings stays leans looks rolls walks
    runs
    """
)
_PLACES = _words("near behind beside under above across from past around inside")
_TAILS = _phrases(
    """
    all day|every night|in the summer|in the winter|without a sound|for a while|once more|again|at
    noon|as before|in the rain|after the storm|for many years|and nobody knows why
    """
)
_ONSETS = _words("b c d f g h j k l m n p r s t v z br ch dr gr kr sh st tr")
_VOWELS = _words("a e i o u a e i o ai ea")
_CODAS = _phrases("|||n|r|s|l|k|m|t|nd")


def coined(rng: random.Random) -> str:
    """A made-up name, so that copying is learnt rather than a list."""
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((1, 2, 2, 3)))]
    return ("".join(parts) + rng.choice(_CODAS)).capitalize()


def name(rng: random.Random) -> str:
    """A person's name: from the list, or now and then coined."""
    return coined(rng) if rng.random() < 0.35 else rng.choice(NAMES)


def city(rng: random.Random) -> str:
    """A city's name: from the list, or now and then coined."""
    return coined(rng) if rng.random() < 0.3 else rng.choice(CITIES)


def filler(rng: random.Random) -> str:
    """A sentence that says nothing worth remembering."""
    form = rng.randrange(4)
    adjective, noun, verb = rng.choice(_ADJECTIVES), rng.choice(_NOUNS), rng.choice(_VERBS)
    place, other, tail = rng.choice(_PLACES), rng.choice(_NOUNS), rng.choice(_TAILS)
    if form == 0:
        return f"The {adjective} {noun} {verb} {place} the {other}."
    if form == 1:
        return f"The {noun} {verb} {tail}."
    if form == 2:
        return f"A {noun} {verb} {place} the {adjective} {other} {tail}."
    return f"Some say the {noun} is {adjective}, and the {other} {verb} {tail}."
