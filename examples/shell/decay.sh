#!/bin/sh
# A simulator as a shell script: reads the input file that twostep filled in, writes its results as CSV.
#
# Concentration c0 exp(-rate t) after one, two, ..., eight hours.
rate=$(sed -n 's/^rate *= *//p' decay.in)
c0=$(sed -n 's/^c0 *= *//p' decay.in)
awk -v k="$rate" -v c="$c0" 'BEGIN { print "t,concentration"; for (t = 1; t <= 8; t++) printf "%d,%.12g\n", t, c * exp(-k * t) }' > decay.csv
