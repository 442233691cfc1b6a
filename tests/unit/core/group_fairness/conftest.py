"""The worked example of gfrc: topic M002, figure 5 (annotations) and tables 1 and 2."""

import pytest

from evenmesh_core.group_fairness import Attribute

# The left-hand conversation as figure 5 prints it, without the balloons that give the word counts.
BING = """\
##### M002
### U1
Please list up sci-fi movies that feature time travel, listed in IMDb.
Format: movie title, iMDB URL
### S1 o
Here are some sci-fi movies that feature time travel, listed in IMDb:
Back to the Future (1985): https://www.imdb.com/title/tt0088763/
#L2
#RATINGS: (0,0,0,1) #1.3M
#ORIGIN: (0,1,0,0,0,0,0,0) #United States
The Terminator (1984): https://www.imdb.com/title/tt0088247/
#L2
#RATINGS: (0,0,1,0) #898K
#ORIGIN: (0,1/2,0,0,0,1/2,0,0) #United Kingdom,United States
Groundhog Day (1993): https://www.imdb.com/title/tt0107048/
#L2
#RATINGS: (0,0,1,0) #661K
#ORIGIN: (0,1,0,0,0,0,0,0) #United States
Interstellar (2014): https://www.imdb.com/title/tt0816692/
#L1
#RATINGS: (0,0,0,1) #2M
#ORIGIN: (0,2/3,0,0,0,1/3,0,0) #United States,United Kingdom,Canada
The Time Machine (1960): https://www.imdb.com/title/tt0054387/
#L2
#RATINGS: (0,0,1,0) #43K
#ORIGIN: (0,1,0,0,0,0,0,0) #United States
I hope this helps! Let me know if there's anything else I can help you with.
### U2
Can you name a few more?
### S2 o
Sure! Here are some more sci-fi movies that feature time travel, listed in IMDb:
12 Monkeys (1995): https://www.imdb.com/title/tt0114746/
#L2
#RATINGS: (0,0,1,0) #634K
#ORIGIN: (0,1,0,0,0,0,0,0) #United States
The Butterfly Effect (2004): https://www.imdb.com/title/tt0289879/
#L2
#RATINGS: (0,0,1,0) #508K
#ORIGIN: (0,1,0,0,0,0,0,0) #United States,Canada
Looper (2012): https://www.imdb.com/title/tt1276104/
#L2
#RATINGS: (0,0,1,0) #592K
#ORIGIN: (0,1/2,0,1/2,0,0,0,0) #United States,China
Edge of Tomorrow (2014): https://www.imdb.com/title/tt1631867/
#L2
#RATINGS: (0,0,1,0) #711K
#ORIGIN: (0,1,0,0,0,0,0,0) #United States,Canada
Predestination (2014): https://www.imdb.com/title/tt2397535/
#L2
#RATINGS: (0,0,1,0) #294K
#ORIGIN: (0,1/2,0,0,0,0,0,1/2)#Australia,United States
I hope this helps! Let me know if there's anything else I can help you with.
"""


@pytest.fixture
def figure_5():
    return BING


@pytest.fixture
def attributes():
    """RATINGS: 4 ordinal groups, uniform. ORIGIN: 8 regions, as the track's countries fall into them."""
    countries = (58, 26.5, 2, 36.5, 23.5, 47.5, 19, 24)
    return {
        "RATINGS": Attribute([1 / 4] * 4, "rnod"),
        "ORIGIN": Attribute([share / 237 for share in countries], "jsd"),
    }
