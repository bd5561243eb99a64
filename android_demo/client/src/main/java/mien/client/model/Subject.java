package mien.client.model;

import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.regex.Pattern;

/** What users ask of a recogniser first, and the words by which a group is known to be about it (as fairness.py has them). */
public enum Subject {
    CHILDREN("child|kid|infant|\\b\\d[-–]1[0-2]\\b"),
    YOUNG("teen|adolescent|young|\\b13[-–]1[789]\\b"),
    OLD("senior|elder|\\b6[05]\\+|\\b6[05][-–]"),
    SEXES("\\b(?:sex|gender|women|men|female|male|woman|man)\\b"),
    ORIGINS("skin|fitzpatrick|race|ethnic|origin|ancestry|african|asian|indian"),
    RELATIVES("twin|sibling|relative|kin\\b"),
    COVERS("mask|cover|occlu|veil");

    private final Pattern words;

    Subject(String words) {
        this.words = Pattern.compile(words);
    }

    /** Returns those that none of the groups measured is about. */
    public static Set<Subject> without(List<ModelSpec.Group> measured) {
        Set<Subject> left = EnumSet.allOf(Subject.class);
        for (ModelSpec.Group each : measured) {
            String told = each.toString().toLowerCase(Locale.ROOT);
            left.removeIf(subject -> subject.words.matcher(told).find());
        }
        return left;
    }
}
