"""Importers of research data sets, loaded as
`text2grad import FILE --kind text2grad_lab.readers.NAME:IMPORTER`."""
