"""What a target is asked for, where it makes up its own texts.

What a model says unasked is short and of few kinds. So half of the texts are tasks: the target
writes something about a topic, a program or an article, and is then given that to work on. Such
prompts are long, and their answers copy from them, as those of users do.
"""

import random
from typing import NamedTuple


class Task(NamedTuple):
    ask: str  # for some material about a topic
    give: str  # the prompt, once the material is there


_TASKS = [
    Task(
        "Write the beginning of a Python function that has to do with {topic}: its imports, its "
        "signature and a docstring with two examples, in one code block. Leave out its body.",
        "Complete this function.\n\n{material}",
    ),
    Task(
        "Ask a programmer for a Python function that has to do with {topic}. Say what it takes and "
        "what it returns. Write the request only.",
        "{material}",
    ),
    Task(
        "Write a program of about thirty lines that has to do with {topic}, in one code block.",
        "Correct the faults of this program and write it again.\n\n{material}",
    ),
    Task(
        "Write a class that has to do with {topic}, in a programming language of your choice, in "
        "one code block.",
        "{material}\n\nAdd documentation to each method, and one more method that is useful.",
    ),
    Task(
        "Write the beginning of a Python function that has to do with {topic}, with type hints, "
        "a docstring of three lines and doctests. Leave out its body.",
        "Write the whole function.\n\n{material}",
    ),
    Task(
        "Write a mathematical word problem about {topic} for a school class, with several numbers. "
        "Do not solve it.",
        "{material}",
    ),
    Task(
        "Write a newspaper article of four paragraphs about {topic}, with names and numbers.",
        "Summarise: {material}",
    ),
    Task(
        "Write three paragraphs of an encyclopedia about {topic}.",
        "{material}\n\nAnswer from the text above: what is the most important thing about {topic}, "
        "and why?",
    ),
    Task("Write a sentence about {topic} in German.", "Translate German to English: {material}"),
    Task("Ask a question of general knowledge about {topic}, in one sentence.", "{material}"),
    Task(
        "Make up a writing exercise about {topic}: for a story, a letter, a speech or an "
        "explanation. One or two sentences, no solution.",
        "{material}",
    ),
    Task(
        "Write an e-mail of two paragraphs about {topic}, with dates and names.",
        "{material}\n\nWho wants what, and when? Answer as JSON.",
    ),
]
_TOPICS = """
    accounts, animals, appointments, arrays of numbers, bees, birthdays, bicycles, books, brackets,
    bread, bridges, calendars, castles, chess, children, cinemas, cities, clocks, clouds, coffee,
    coins, colours, cooking, dates, decimal numbers, dictionaries, divisors, dogs, doctors, dreams,
    earthquakes, elections, e-mail addresses, energy, engines, examinations, farms, festivals,
    files, film, fishing, flights, flowers, football, forests, fractions, friendship, games,
    gardens, geometry, glass, gold, graphs, grids, health, history, holidays, hospitals, hotels,
    houses, ice, insects, invoices, islands, jokes, kings, lakes, languages, law, letters of words,
    libraries, lists of words, logarithms, machines, maps, marathons, markets, matrices, medicine,
    memory, mountains, museums, music, names, networks, newspapers, numbers in words, oceans,
    painting, palindromes, parties, passwords, percentages, permutations, pets, photographs,
    physics, pirates, plants, poetry, police, polynomials, prices, prime numbers, probability,
    queues, rain, recipes, rivers, robots, Roman numerals, salaries, satellites, schools, science,
    search, shadows, ships, shopping, sleep, snow, songs, sorting, sport, stacks, stars, strings,
    sums, swimming, tables, taxes, tea, telephones, temperatures, theatre, tickets, time zones,
    tools, towns, toys, trade, trains, travel, trees, triangles, universities, vegetables, versions,
    vowels, votes, war, water, weather, weddings, winter, words in sentences, work
"""
TOPICS = " ".join(_TOPICS.split()).split(", ")


def task_of(number: int) -> Task:
    """Always the same for a number: a task about two topics."""
    draw = random.Random(number)
    task, topic = draw.choice(_TASKS), " and ".join(draw.sample(TOPICS, 2))
    return Task(task.ask.replace("{topic}", topic), task.give.replace("{topic}", topic))


# To an answer that the target has given.
FOLLOW_UPS = [
    "Summarise that in two sentences.",
    "Write that again, shorter.",
    "Write that again and correct every mistake.",
    "List the most important points of that.",
    "Which names and numbers occur in that? Answer as JSON.",
    "Translate that into French.",
    "Translate that into German.",
    "Write the same for a child.",
    "Quote the sentence of that which matters most, and say why.",
    "Go on.",
]
