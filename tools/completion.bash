# Completion of tshard's programs in bash. It asks the program's own --help, so it knows what the installed one does.

# The words after a program (and its command) that --help names: __tshard_help COMMAND...
__tshard_help() { "$@" --help 2> /dev/null < /dev/null; }

# Of the rows of the text on stdin: options, as they are written at its start ("-n, --ranks N").
__tshard_options() {
    sed -n 's/^ \{2,8\}\(--*[a-zA-Z].*\)/\1/p' | sed 's/   *.*//' | grep -oE -- '(^|[ ,])--?[a-zA-Z][a-zA-Z-]*' | tr -d ' ,'
}

# The commands of a program that has some: rows below "Commands", or the second words of its usage.
__tshard_commands() {
    sed -n -e '/^Commands/,/^$/s/^  \([a-z_]*\)  .*/\1/p' -e '/^\(usage:\|      \) tshard-[a-z]* [a-z]/s/^.\{6\} tshard-[a-z]* \([a-z_]*\).*/\1/p'
}

# The value that the option $1 wants, as the text on stdin writes it: FILE, cores|none, N; nothing for a switch.
__tshard_value() {
    sed -n 's/^ \{2,8\}\(--*[a-zA-Z].*\)/\1/p' | sed 's/   *.*//' | grep -E -- "(^|[ ,])$1[ ,]" | head -n 1 | sed -n 's/.* \([^-].*\)/\1/p'
}

_tshard() {
    local program=$1 current=$2 previous=$3 name=${1##*/} text commands command="" value="" i
    COMPREPLY=()
    text=$(__tshard_help "$program")
    commands=$(__tshard_commands <<< "$text")
    if [ -n "$commands" ]; then
        for ((i = 1; i < COMP_CWORD; i++)); do
            [[ " ${commands//$'\n'/ } " == *" ${COMP_WORDS[i]} "* ]] && command=${COMP_WORDS[i]} && break
        done
        [[ -z $command || $text != *"COMMAND --help"* ]] || text=$(__tshard_help "$program" "$command")
    elif [ "$name" = tshard-run ] || [ "$name" = tshard-plan ]; then
        # The first word that is neither an option nor the value of one begins the command to run.
        for ((i = 1; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
                -np) ((i++)) ;;
                -*=*) ;;
                =) ((i++)) ;;
                -*) [ -z "$(__tshard_value "${COMP_WORDS[i]}" <<< "$text")" ] || ((i++)) ;;
                *)
                    if declare -F _command_offset > /dev/null; then _command_offset "$i"; else compopt -o default; fi
                    return
                    ;;
            esac
        done
    fi
    case $previous in
        -np) return ;;
        -*) value=$(__tshard_value "$previous" <<< "$text") ;;
    esac
    case $value in
        "") ;;
        *"|"*) mapfile -t COMPREPLY < <(compgen -W "${value//|/ }" -- "$current"); return ;;
        *FILE* | *DIR* | *FOLDER* | *PATH*) compopt -o default; return ;;
        *) return ;; # a number or a name, which nobody can guess
    esac
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(__tshard_options <<< "$text")" -- "$current")
    elif [ -n "$commands" ] && [ -z "$command" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$current")
    elif [ "$name" = tshard-run ] || [ "$name" = tshard-plan ]; then
        mapfile -t COMPREPLY < <(compgen -c -- "$current" | sort -u)
        compopt -o default
    else
        compopt -o default
    fi
}

complete -F _tshard tshard-run tshard-bench tshard-checkpoint tshard-plan tshard-quantize tshard-trace
