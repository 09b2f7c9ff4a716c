# Strings of 90 KB to 2 MB that grow and go. Argument: rounds.
use strict;
my $rounds = shift;
my $first = "x" x (30 << 20);
undef $first;
my $total = 0;
for my $round (1 .. $rounds) {
    my @strings = map { chr(97 + $_ % 26) x 90000 } 1 .. 60;
    my $text = "";
    $text .= $_ for @strings[0 .. 19];
    $text =~ tr/a-m/A-M/;
    $total += length($text) + ord(substr($text, $round * 7, 1));
}
print "$total\n";
