/**
 * An optimizer rule of Spark: a query reads only the columns of a trace that it uses.
 *
 * Spark (4.3.0) gives data sources in Python all columns of their table, whatever a query selects. After Spark's own
 * column pruning, each scan stands below a Project or an Aggregate, with filters between; this rule replaces the scan
 * by one of the columns that these refer to. A query without columns, such as count(), reads the smallest one.
 *
 * Spark remembers pushed filters in the scan, so nothing is replaced where filters are pushed down to Python.
 * segstore.pipeline.session compiles this with Janino, which Spark itself uses for generated code.
 */
package segstore.pipeline;

import java.util.HashMap;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.immutable.List;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

public final class PruneColumns extends Rule {
  private static final String FORMAT = "segstore.trace";
  private static final String PUSH_DOWN = "spark.sql.python.filterPushdown.enabled";

  public TreeNode apply(TreeNode plan) {
    return "true".equals(conf().getConfString(PUSH_DOWN, "false")) ? plan : pruned((LogicalPlan) plan, null);
  }

  /** A plan of which only these columns are used; null for all of them. */
  private LogicalPlan pruned(LogicalPlan plan, AttributeSet used) {
    if (plan instanceof DataSourceV2ScanRelation) {
      return used == null ? plan : narrowed((DataSourceV2ScanRelation) plan, used);
    }
    AttributeSet below = null;
    if (plan instanceof Project || plan instanceof Aggregate) {
      below = plan.references();
    } else if (plan instanceof Filter && used != null) {
      below = used.$plus$plus(plan.references());
    }
    Seq before = plan.children();
    List after = (List) Nil$.MODULE$;
    boolean changed = false;
    for (int at = before.length() - 1; at >= 0; at--) {
      LogicalPlan child = pruned((LogicalPlan) before.apply(at), below);
      changed |= child != before.apply(at);
      after = after.prepended(child);
    }
    return changed ? (LogicalPlan) plan.withNewChildren(after) : plan;
  }

  private LogicalPlan narrowed(DataSourceV2ScanRelation scan, AttributeSet used) {
    if (!(scan.relation().table() instanceof PythonTable) || !scan.relation().table().name().equals(FORMAT)) {
      return scan;
    }
    AttributeReference smallest = null;
    List output = (List) Nil$.MODULE$;
    for (int at = scan.output().length() - 1; at >= 0; at--) {
      AttributeReference each = (AttributeReference) scan.output().apply(at);
      if (used.contains(each)) {
        output = output.prepended(each);
      }
      if (smallest == null || each.dataType().defaultSize() <= smallest.dataType().defaultSize()) {
        smallest = each;
      }
    }
    if (output.isEmpty()) {
      output = output.prepended(smallest);
    }
    if (output.length() == scan.output().length()) {
      return scan;
    }
    StructType schema = new StructType();
    for (int at = 0; at < output.length(); at++) {
      AttributeReference each = (AttributeReference) output.apply(at);
      schema = schema.add(each.name(), each.dataType(), each.nullable(), each.metadata());
    }
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(FORMAT);
    SupportsRead table = (SupportsRead) source.getTable(schema, new Transform[0], new HashMap());
    HashMap options = new HashMap(scan.relation().options());
    if (!scan.relation().options().getBoolean("packed", false)) { // the columns of packed rows are not in this option
      // The source still checks the names of all columns.
      options.put("columns", String.join(",", scan.relation().table().schema().fieldNames()));
    }
    // Versions of Spark differ in the number of the relation's arguments, but not in the first three.
    Object[] arguments = new Object[scan.productArity()];
    for (int at = 0; at < arguments.length; at++) {
      arguments[at] = scan.productElement(at);
    }
    arguments[1] = table.newScanBuilder(new CaseInsensitiveStringMap(options)).build();
    arguments[2] = output;
    return (LogicalPlan) scan.makeCopy(arguments);
  }
}
