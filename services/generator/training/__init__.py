"""RankRAG training: a blend of local data sets, and a two-stage trainer for models that rank and answer."""
