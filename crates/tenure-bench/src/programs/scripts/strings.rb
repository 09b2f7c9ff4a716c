# Strings of 60 KB to 3 MB that grow and go. Argument: rounds.
rounds = ARGV[0].to_i
total = 0
rounds.times do |round|
  strings = (1..40).map { |n| (97 + n % 26).chr * (60_000 + 1000 * n) }
  text = +""
  strings.each { |string| text << string }
  total += text.length + text.upcase.getbyte(round * 11) + text.reverse.getbyte(3)
end
puts total
