package mien.app.camera;

import android.content.Context;
import android.graphics.Canvas;
import android.graphics.Paint;
import android.graphics.Path;
import android.graphics.RectF;
import android.view.View;
import mien.client.enrol.EnrolmentSession;
import mien.client.enrol.Pose;

/** Lies over a preview and shows where the face, or the code, belongs; around a face also which poses were taken. */
public final class Guide extends View {
    private static final int SCRIM = 0x99000000;
    private static final int WAITING = 0xFFFFFFFF;
    private static final int LATER = 0x80FFFFFF;
    private static final int DONE = 0xFF7FD6BE;
    /** Three of them, with gaps between. */
    private static final float ARC_DEG = 104;

    private static final float ARROW_DP = 16;
    private static final float ARROW_GAP_DP = 8;
    /** Of the height: below the middle, for the hint is above. */
    private static final float MIDDLE = 0.54f;
    private static final float LINE_DP = 4;
    private static final float CORNER_DP = 20;
    /** Of the preview's width: an oval, as wide as a face at arm's length. */
    private static final float OVAL_WIDTH = 0.62f;

    private static final float OVAL_ASPECT = 1.32f;
    private static final float MOST_OF_HEIGHT = 0.86f;
    private static final float SQUARE = 0.72f;

    private final boolean isOval;
    private final Paint scrim = new Paint();
    private final Paint line = new Paint(Paint.ANTI_ALIAS_FLAG);
    private final Path outside = new Path();
    private final RectF shape = new RectF();
    private final Path arrow = new Path();
    private EnrolmentSession.Progress progress;

    private Guide(Context context, boolean isOval) {
        super(context);
        this.isOval = isOval;
        scrim.setColor(SCRIM);
        scrim.setAntiAlias(true);
        line.setStyle(Paint.Style.STROKE);
        line.setStrokeCap(Paint.Cap.ROUND);
        line.setStrokeWidth(dp(LINE_DP));
        setImportantForAccessibility(IMPORTANT_FOR_ACCESSIBILITY_NO); // the hint says it in words
    }

    /** Returns an oval for a face. */
    public static Guide face(Context context) {
        return new Guide(context, true);
    }

    /** Returns a square for a code. */
    public static Guide code(Context context) {
        return new Guide(context, false);
    }

    /** Shows how far an enrolment is, as an arc for each pose, and to which side the head is to be turned. */
    public void show(EnrolmentSession.Progress progress) {
        this.progress = progress;
        invalidate();
    }

    @Override
    protected void onSizeChanged(int width, int height, int oldWidth, int oldHeight) {
        float oval = Math.min(width * OVAL_WIDTH, height * MOST_OF_HEIGHT / OVAL_ASPECT);
        float across = isOval ? oval : Math.min(width, height) * SQUARE;
        float down = isOval ? across * OVAL_ASPECT : across;
        float middle = height * (isOval ? MIDDLE : 0.5f);
        shape.set((width - across) / 2, middle - down / 2, (width + across) / 2, middle + down / 2);
        outside.reset();
        outside.setFillType(Path.FillType.EVEN_ODD);
        outside.addRect(0, 0, width, height, Path.Direction.CW);
        if (isOval) {
            outside.addOval(shape, Path.Direction.CW);
        } else {
            outside.addRoundRect(shape, dp(CORNER_DP), dp(CORNER_DP), Path.Direction.CW);
        }
    }

    @Override
    protected void onDraw(Canvas canvas) {
        canvas.drawPath(outside, scrim);
        line.setColor(WAITING);
        if (!isOval) {
            canvas.drawRoundRect(shape, dp(CORNER_DP), dp(CORNER_DP), line);
            return;
        }
        if (progress == null) {
            canvas.drawOval(shape, line);
            return;
        }
        for (Pose pose : Pose.values()) {
            drawArc(canvas, pose, progress.share(pose));
        }
        if (progress.pose == Pose.LEFT || progress.pose == Pose.RIGHT) {
            drawArrow(canvas, progress.pose == Pose.LEFT ? -1 : 1);
        }
    }

    /** Draws a pose's arc, in which what was taken grows from the top on; the one that is wanted now is the widest. */
    private void drawArc(Canvas canvas, Pose pose, float share) {
        float middle = pose == Pose.STRAIGHT ? -90 : pose == Pose.RIGHT ? 30 : 150;
        float from = middle - ARC_DEG / 2;
        line.setStrokeWidth(dp(pose == progress.pose ? 2.5f * LINE_DP : LINE_DP));
        line.setColor(pose == progress.pose ? WAITING : LATER);
        canvas.drawArc(shape, from, ARC_DEG, false, line);
        if (share > 0) {
            line.setColor(DONE);
            line.setStrokeWidth(dp(2.5f * LINE_DP));
            boolean isLeft = pose == Pose.LEFT;
            canvas.drawArc(shape, isLeft ? from + ARC_DEG : from, isLeft ? -ARC_DEG * share : ARC_DEG * share, false, line);
        }
        line.setStrokeWidth(dp(LINE_DP));
    }

    /** Draws two angles beside the oval. The preview is a mirror: somebody's left is the screen's. */
    private void drawArrow(Canvas canvas, int side) {
        float size = dp(ARROW_DP);
        float edge = side < 0 ? shape.left : shape.right;
        arrow.reset();
        for (int each = 1; each <= 2; each++) {
            float tip = edge + side * (dp(ARROW_GAP_DP) + each * size);
            arrow.moveTo(tip - side * size, shape.centerY() - size);
            arrow.lineTo(tip, shape.centerY());
            arrow.lineTo(tip - side * size, shape.centerY() + size);
        }
        line.setColor(WAITING);
        line.setStrokeWidth(dp(1.5f * LINE_DP));
        canvas.drawPath(arrow, line);
        line.setStrokeWidth(dp(LINE_DP));
    }

    private float dp(float dp) {
        return dp * getResources().getDisplayMetrics().density;
    }
}
