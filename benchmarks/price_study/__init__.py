"""What evenness of exposure costs in the utility of answers (docs/studies/price.md)."""
