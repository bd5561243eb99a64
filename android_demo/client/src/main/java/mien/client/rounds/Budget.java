package mien.client.rounds;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.secagg.Ledger;
import mien.client.secagg.RoundConfig;
import mien.client.tasks.Agreement;
import mien.client.tasks.TaskSpec;
import mien.client.wire.Bytes;

/**
 * What a task promises this device, and its owner's limits on sums.
 *
 * <p>Two sums that differ by one phone tell what that phone sent. So without noise of the phones' own the same pictures go
 * into few sums over one model, and into few a day, whatever their tasks are called; decision 0052 shows why it is enough
 * to count a masked vector whose sum was not opened with this device's help towards other rounds, not towards the next
 * attempt of the same one.
 */
final class Budget {
    private static final long DAY_S = 86_400;

    private final TaskSpec task;
    private final Agreement agreement;

    Budget(TaskSpec task, Agreement agreement) {
        this.task = task;
        this.agreement = agreement;
    }

    /**
     * Throws BUDGET_EXCEEDED unless one more sum is covered; told that, then all sums so far, of any population. The owner's
     * largest epsilon is over all of them, the rest over those of the coming sum's population.
     */
    void check(OwnSum coming, List<OwnSum> sums) {
        List<OwnSum> here = Attempts.of(sums, coming.population);
        checkPromise(coming, here);
        if (!Double.isInfinite(agreement.maxEpsilon)) {
            Ledger.checkOwner(coming.terms, terms(sums), agreement.maxEpsilon);
        }
        Ledger.check(coming.terms, terms(here));
        checkLimits(coming, here);
    }

    private static List<RoundConfig> terms(List<OwnSum> sums) {
        List<RoundConfig> terms = new ArrayList<>();
        for (OwnSum sum : sums) {
            terms.add(sum.terms);
        }
        return terms;
    }

    /** Throws BUDGET_EXCEEDED for a round that would put this device into more sums than the task promises it. */
    void checkPromise(OwnSum coming, List<OwnSum> earlier) {
        List<Long> rounds = new ArrayList<>();
        for (OwnSum sum : earlier) {
            if (sum.attempt.task().equals(coming.attempt.task())) {
                rounds.add(sum.attempt.round);
            }
        }
        task.checkPromise(rounds, coming.attempt.round);
    }

    /** Throws BUDGET_EXCEEDED for a sum more than the owner's limits let these pictures into. */
    void checkLimits(OwnSum coming, List<OwnSum> earlier) {
        if (coming.isNoised) {
            return;
        }
        int alike = 0;
        List<OwnSum> others = new ArrayList<>();
        for (OwnSum sum : earlier) {
            alike += sum.differsByOthersFrom(coming) ? 1 : 0;
            if (!sum.isTriedAgainBy(coming)) {
                others.add(sum);
            }
        }
        // Models are measured again and again, by sums of scores.
        if (!task.measures() && alike >= agreement.maxSumsPerModel) {
            throw new MienException(
                    ErrorCode.BUDGET_EXCEEDED,
                    "the same pictures are or may be in " + alike + (alike == 1 ? " sum" : " sums") + " over model "
                            + Bytes.hex(coming.modelSha256).substring(0, 12)
                            + " already, and the difference of two can tell one phone's part; this phone waits for another"
                            + " model");
        }
        int today = sumsToday(others, coming.unixS);
        if (today >= agreement.maxSumsPerDay) {
            throw new MienException(
                    ErrorCode.BUDGET_EXCEEDED,
                    "this phone's pictures went into " + today + " sums in the last 24 hours, and the most is "
                            + agreement.maxSumsPerDay + "; it waits");
        }
    }

    /**
     * Returns how many sums without noise of the phones' own may have been opened in the last 24 hours. Attempts of one
     * round of which no shares left here are one sum. A clock that was wrong counts for a day at most.
     */
    static int sumsToday(List<OwnSum> sums, long nowUnixS) {
        int released = 0;
        Set<String> rounds = new HashSet<>();
        for (OwnSum sum : sums) {
            boolean counts = !sum.isNoised && Math.abs(nowUnixS - sum.unixS) < DAY_S;
            if (counts && sum.isReleased) {
                released++;
            } else if (counts) {
                rounds.add(sum.attempt.task() + "/" + sum.attempt.round);
            }
        }
        return released + rounds.size();
    }
}
