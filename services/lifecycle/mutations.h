/* SPDX-License-Identifier: Apache-2.0
 *
 * Deliberate bugs for the mutation check of the simulator: each proves that the net has no hole where it stands. Only
 * the simulator's own build of the lifecycle code defines SANDKEEP_MUTATIONS and sets lc_mutation; elsewhere LC_MUTATE
 * is the constant false. */
#ifndef SK_LIFECYCLE_MUTATIONS_H
#define SK_LIFECYCLE_MUTATIONS_H

enum lc_mutation {
    LC_MUTATION_NONE = 0,
    LC_MUTATION_SKIP_EPOCH_CHECK,         /* delete provider objects without looking at their epoch */
    LC_MUTATION_CLEAR_OUTBOX_EARLY,       /* pull events from the outbox before the PubAck */
    LC_MUTATION_FORGET_HEARTBEAT,         /* running operations do not beat */
    LC_MUTATION_RELEASE_FOREIGN_LEASE,    /* delete the lease key whoever holds it */
    LC_MUTATION_PROVISION_WITHOUT_QUOTA,  /* claim without a reservation */
    LC_MUTATION_DELETE_RECORD_FIRST,      /* remove the record before the effects */
    LC_MUTATION_RENEW_PAST_DEADLINE,      /* keep heartbeat and lease alive after the phase deadline */
    LC_MUTATION_RETRY_CREATE_BLINDLY,     /* create again after a time-out without listing */
    LC_MUTATION_PARK_WITHOUT_IN_PROGRESS, /* parked commands do not extend their AckWait */
    LC_MUTATION_ACK_BEFORE_STORE,         /* acknowledge a command before its result is stored */
    LC_MUTATION_SKIP_TERMINAL_FENCE,      /* commit the terminal status whoever owns the operation by now */
    /* Bugs that the simulator found while this was written: kept, so that the net keeps catching them. */
    LC_MUTATION_REPEAT_LOST_INSERT,   /* insert again what a look does not find after an ambiguous insert */
    LC_MUTATION_ANSWER_ANEW,          /* answer a repeated id with the own result instead of the stored one */
    LC_MUTATION_TAKE_OVER_EARLY,      /* take over after half of the silence */
    LC_MUTATION_CAS_WITHOUT_SEQUENCE, /* leave the sequence out of the compare-and-set filter (the store's) */
    LC_MUTATION_CLEAN_WHAT_IS_NEEDED, /* after a lost operation remove its object although the next owner relies on it
                                       */
    LC_MUTATION_FORGET_RECALL,        /* do again what a command did before its result could be stored */
    LC_MUTATION_TAKE_STOP_FOR_NEW,    /* stop what a stop that comes again has stopped before */
    LC_MUTATION_COUNT
};

#ifdef SANDKEEP_MUTATIONS
extern enum lc_mutation lc_mutation;
#define LC_MUTATE(name) (lc_mutation == LC_MUTATION_##name)
#else
#define LC_MUTATE(name) false
#endif

#endif
