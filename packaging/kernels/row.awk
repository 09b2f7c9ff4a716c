# Turns a guest's output into a row of the table. Mistakes go to standard error, and it then ends with 1.
function wrong(text) { print "    " run ": " text >"/dev/stderr"; bad = 1 }
/^== begin / { program = $3; sum = ""; programs++ }
/^test .* \.\.\. FAILED/ { wrong(program "::" $2 " failed") }
/^test result: / { sum = $0 }
/^sum / && program == "tenure-truth" {
    sum = $0; checked = $5
    if ($(NF - 2) + $(NF - 1) + $NF > 0) wrong("truth machine: " $(NF - 2) " wrong, " $(NF - 1) " hangs, " $NF " kills")
}
/^== end / {
    sub(/,/, "", $5)
    if (program == "tenure-truth") { if ($5 != 0) wrong("the truth machine ended with " $5) }
    else if (split(sum, n, /[^0-9]+/) > 4) { passed += n[2]; failed += n[3]; ignored += n[4] }
    else { wrong(program " ended with " $5 " after " $6 " s, and no result"); failed++ }
    program = ""
}
/^== skip / { if (!($3 in skips)) skipped++; skips[$3] = 1 }
/^== (complaint|problem)/ { wrong(substr($0, 4)) }
/^== done/ { done = 1 }
/^== kernel: / { kernel = $3 }
/^the emulator ended|Kernel panic/ { wrong($0) }
END {
    if (!done) wrong("the guest did not reach its end" (program ? ", but stopped in " program : ""))
    split(run, way, " ")
    printf "| %s | %s | %s | %s | %d | %d | %d | %d | %s | %d |\n", kernel ? kernel : way[1], way[2], way[3], way[4],
        programs, passed - skipped, failed, skipped, checked ? checked : "-", took
    exit bad
}
