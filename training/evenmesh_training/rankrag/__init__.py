"""RankRAG training (Yu et al., 2024): a blend of data sets and a two-stage trainer."""
