#!/bin/sh
# Train configs/multi30k-recipe.toml with seeds 1 to 3 at the same time, average the last 9 checkpoints, and translate.
#
#   sh benchmarks/multi30k/seeds.sh DATA OUT [options of train]
#   sh benchmarks/multi30k/seeds.sh data/multi30k runs/seeds --device cuda --set train.precision=bf16 --set train.cuda_graphs=true
#
# DATA contains train, val and test2016 in .en and .de, tokenized, and may contain further sources NAME.en. The runs are
# OUT/run-SEED, and the translations OUT/SEED/NAME.de. The same command continues runs that were interrupted; the
# environment variable SEEDS selects seeds, as in SEEDS="2 3".
set -eu
[ $# -ge 2 ] || { echo "seeds.sh: expected DATA OUT [options of train]; got $# arguments" >&2; exit 2; }
data=$1 out=$2
shift 2

one_seed() {
    run=$out/run-$1 seed=$1
    shift
    mkdir -p "$out/$seed"
    if [ -e "$run/config.toml" ]; then
        npx-transformer train --resume --out "$run" "$@"
    else
        npx-transformer train configs/multi30k-recipe.toml --out "$run" --set train.seed="$seed" \
            --train-src "$data/train.en" --train-tgt "$data/train.de" \
            --valid-src "$data/val.en" --valid-tgt "$data/val.de" "$@"
    fi
    npx-transformer average "$run" --last 9
    for source in "$data"/*.en; do
        name=$(basename "$source" .en)
        [ "$name" = train ] || npx-transformer translate --model "$run" --input "$source" --output "$out/$seed/$name.de"
    done
    npx-transformer score --ref "$data/test2016.de" --hyp "$out/$seed/test2016.de" --bootstrap 1000 --output "$out/$seed/score.txt"
}

mkdir -p "$out"
trap 'trap "" TERM; kill 0; wait; exit 130' INT TERM # a training that is terminated saves a checkpoint first
trainings=""
for seed in ${SEEDS:-1 2 3}; do
    one_seed $seed "$@" >"$out/$seed.log" 2>&1 &
    trainings="$trainings $!"
done
status=0
for training in $trainings; do
    wait "$training" || status=1
done
for seed in ${SEEDS:-1 2 3}; do
    echo "seed $seed:"
    tail -n 3 "$out/$seed.log"
done
exit $status
