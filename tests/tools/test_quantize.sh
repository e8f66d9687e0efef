#!/usr/bin/env bash
# test_quantize.sh BUILD: tshard-quantize writes the bytes of the golden files (tests/data/gguf), whose weights ggml's own
# code has quantized; generate goes on from what it writes, for Llama and Qwen2; and what it cannot write it refuses.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
bin=$1/bin
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
fail() { echo "$1"; exit 1; }
quantize() { timeout -k 5 300 "$bin/tshard-quantize" "$@" > "$folder/out" 2> "$folder/err" < /dev/null; }

# same MODEL TYPE BYTES: the data behind the header is that of the golden file.
same() {
    quantize "tests/data/gguf/$1" "$folder/m.gguf" --type "$2" || fail "$1 $2: $(cat "$folder/err")"
    cmp <(tail -c "$3" "$folder/m.gguf") <(tail -c "$3" "tests/data/gguf/$1/$1-$2.gguf") || fail "$1 $2 has other bytes"
}
same llama q8_0 80320
same llama q4_0 46368
same llama3 q8_0 12512

# continues FOLDER TYPE RANKS PROMPT: the ids that generate makes of the file.
continues() {
    quantize "$1" "$folder/m.gguf" --type "$2" || fail "$1 $2: $(cat "$folder/err")"
    timeout -k 5 300 "$bin/tshard-run" --no-prefix -n "$3" "$bin/generate" --model "$folder/m.gguf" --prompt-ids "$4" \
        --tokens 8 --ignore-eos --dtype float64 2> "$folder/err" || fail "$1 $2 on $3 ranks: $(cat "$folder/err")"
}
for model in gguf/llama models/qwen2 models/llama-tied; do
    for type in q8_0 q4_0; do
        one=$(continues "tests/data/$model" $type 1 5,6,7) || fail "$one"
        three=$(continues "tests/data/$model" $type 3 5,6,7) || fail "$three"
        [ "$one" = "$three" ] || fail "$model $type: $one on a rank, $three on three"
        [[ $one =~ ^[0-9]+(,[0-9]+){7}$ ]] || fail "$model $type: '$one'"
    done
done
# 8 bits change none of these ids.
whole=$("$bin/generate" --model tests/data/models/qwen2 --prompt-ids 5,6,7 --tokens 8 --ignore-eos --dtype float64)
[ "$(continues tests/data/models/qwen2 q8_0 1 5,6,7)" = "$whole" ] || fail "qwen2 q8_0 is not $whole"

# Embeddings that are also the output layer stay quantized: a pass reads 67,904 weights as the file has them, those of
# the blocks and of the table, and five norms. The ids are those of floats, at any number of ranks.
cp -r tests/data/gguf/llama "$folder/tied" && chmod -R u+w "$folder/tied"
sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$folder/tied/config.json"
for type_bytes in "q8_0 73428" "q4_0 42708"; do
    read -r type bytes <<< "$type_bytes"
    floats=$(continues "$folder/tied" "$type" 1 5,6,7) || fail "$floats"
    for ranks in 1 3; do
        timeout -k 5 300 "$bin/tshard-run" --no-prefix -n $ranks "$bin/generate" --model "$folder/m.gguf" \
            --prompt-ids 5,6,7 --tokens 8 --ignore-eos --json > "$folder/out" 2> "$folder/err" ||
            fail "tied $type: $(cat "$folder/err")"
        [[ $(tr -d ' ' < "$folder/out") == *"\"ids\":[$floats]"* ]] || fail "tied $type: $(cat "$folder/out")"
        [ $ranks = 3 ] || grep -q "\"weight_bytes\": $bytes," "$folder/out" || fail "tied $type: $(cat "$folder/out")"
    done
done

# The tokenizer travels in the file.
cp -r tests/data/gguf/llama "$folder/model" && chmod -R u+w "$folder/model"
cp tests/data/tokenizers/gpt2/tokenizer.json "$folder/model/"
quantize "$folder/model" "$folder/t.gguf" --type q8_0 || fail "with a tokenizer: $(cat "$folder/err")"
grep -qa "tokenizer.huggingface.json" "$folder/t.gguf" || fail "the tokenizer is not in the file"

# The biases of query and key are in the order of the rows of their matrices, which GGUF files permute in each head.
mkdir "$folder/biased" || fail "no folder"
cat > "$folder/biased/config.json" << 'END'
{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8,
 "max_position_embeddings": 8, "vocab_size": 8, "attention_bias": true}
END
json='{"model.layers.0.self_attn.q_proj.bias":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}'
{
    printf '%b' "\\x$(printf %02x ${#json})\\0\\0\\0\\0\\0\\0\\0"
    printf '%s' "$json"
    for last in 0000 803f 0040 4040 8040 a040 c040 e040; do
        printf '%b' "\\0\\0\\x${last:0:2}\\x${last:2}" # 0 to 7
    done
} > "$folder/biased/model.safetensors"
quantize "$folder/biased" "$folder/b.gguf" --type q8_0 || fail "with a bias: $(cat "$folder/err")"
bias=$(tail -c 32 "$folder/b.gguf" | od -An -v -tf4 | xargs)
[ "$bias" = "0 2 1 3 4 6 5 7" ] || fail "a bias is written as '$bias'"

# A failure leaves no file.
rm -f "$folder/n.gguf"
quantize tests/data/models/bert "$folder/n.gguf" --type q8_0 && fail "bert was written"
grep -q '"model_type" is bert; llama and qwen2 can be written' "$folder/err" || fail "bert: $(cat "$folder/err")"
truncate -s -64 "$folder/model/model.safetensors"
quantize "$folder/model" "$folder/n.gguf" --type q8_0 && fail "a truncated folder was written"
[ -z "$(find "$folder" -name 'n.gguf*')" ] || fail "a failure left a file"
exit 0
