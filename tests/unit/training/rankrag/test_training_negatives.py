"""BM25's hard negatives."""

from rank_bm25 import BM25Okapi

from evenmesh_training.rankrag.data.negatives import Bm25Index, words


def test_the_best_passages_come_first_and_ties_by_number() -> None:
    search = Bm25Index(["red fox", "blue fox", "green tree", "red fox", "grey stone"])
    # "red" is in two passages and "fox" in three, so both together beat "fox" alone; equal texts tie
    assert search.best("the red fox", 5) == [0, 3, 1]
    assert search.best("the red fox", 1) == [0]


def test_a_question_without_a_known_word_finds_nothing() -> None:
    assert Bm25Index(["red fox"]).best("who?", 3) == []
    assert Bm25Index([]).best("red", 3) == []
    assert Bm25Index(["", "..."]).best("red", 3) == []


def test_distinct_words_rank_as_rank_bm25_does() -> None:
    texts = [f"{'apple ' * (n % 4)} pear {'plum ' * (n % 3)} filler{n} filler{n + 1}" for n in range(12)]
    query = "apple plum"
    reference = BM25Okapi([words(text) for text in texts], k1=0.9, b=0.4).get_scores(words(query))
    best = Bm25Index(texts).best(query, 3)
    # idf differs (rank_bm25 floors it), so compare within the passages that hold both words
    both = [n for n in range(12) if n % 4 and n % 3]
    assert best[0] == max(both, key=lambda n: (round(reference[n], 6), -n))
