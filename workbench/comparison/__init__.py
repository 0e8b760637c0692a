"""Stories × models × methods: the comparison, its table, figures and files."""
