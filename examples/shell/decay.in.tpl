# Input file of decay.sh; twostep puts the values in.
rate = {{ rate:.10g }}
c0 = {{ c0:.10g }}
