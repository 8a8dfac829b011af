"""Paid judgements of responses, from any OpenAI-compatible endpoint, through the journal.

`items` are what is judged, `questions` what is asked about them and under which id, `endpoint` one HTTP request,
`pace` how many at a time, `asking` all the requests of one question, `work` the whole job, `verdicts` what the
answers say, `batch` the same requests as a file, `prices` what it costs.
"""
