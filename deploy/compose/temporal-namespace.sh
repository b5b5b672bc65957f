#!/bin/sh
# Makes the namespace and registers the search attributes. Safe to repeat.
set -eu
export TEMPORAL_ADDRESS=temporal:7233
until temporal operator cluster health; do
    echo 'waiting for Temporal'
    sleep 2
done
temporal operator namespace describe -n default >/dev/null 2>&1 ||
    temporal operator namespace create -n default --retention 30d
add() {
    temporal operator search-attribute create -n default --name "$1" --type "$2" ||
        echo "search attribute $1 is there already"
}
add OverlineOrganisation Keyword
add OverlineTeam Keyword
add OverlineModel Keyword
add OverlineStatus Keyword
add OverlineCostMicroUSD Int
