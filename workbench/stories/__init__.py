"""Stories: readers, alignment, consensus, the library of named stories."""
