#!/bin/sh
# An agent as a shell script: it repeats each message, with the number of the turn. See docs/guides/command-agents.md.
count=0
while IFS= read -r line; do
    size=${line##*'"size":'} && size=${size%\}}  # the last field of every line
    body=$(head -c "$size")
    case $line in
        '{"type":"start",'*)
            echo '{"type":"ready"}' ;;
        '{"type":"turn",'*)
            turn=${line#*'"turn":'} && turn=${turn%%,*}
            count=$((count + 1))
            text="$count: $body"
            printf '{"type":"chunk","turn":%d,"size":%d}\n%s' "$turn" "$(printf %s "$text" | wc -c)" "$text"
            printf '{"type":"done","turn":%d}\n' "$turn" ;;
    esac
done
