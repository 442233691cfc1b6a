"""Study ensembles of retrievers (EoR): vote over the answers of many retrievers with learned weights."""
